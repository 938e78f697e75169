"""How files are created: as new ones, for this user alone, and never through a link that lies in their place.

Files that belong together are renamed together, or not at all.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def create_file(path: Path, mode: int = 0o600) -> int:
    """A descriptor to write a new file. Raises `FileExistsError` if there is anything, a link to nowhere included."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, mode)


def open_or_create_file(path: Path, *, writes: bool = False) -> int:
    """A descriptor of a file that several processes lock, made by the first of them. Raises `OSError` for a link.

    With `writes`, parts of it can be locked for one process alone.
    """
    return os.open(path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_CREAT | _NO_LINK, 0o600)


def refuse_links(path: Path, within: Path = Path()) -> None:
    """Raise `OSError` if `path`, relative to the folder `within`, is a link or leads through one.

    What does not exist yet is no link.
    """
    place = within
    for part in path.parts:
        place /= part
        if place.is_symlink():
            raise OSError(errno.ELOOP, f"{place} is a link", str(place))


def read_regular_file(path: Path, most: int) -> bytes | None:
    """The content of a file; None if there is none. Raises `OSError`, also for what has no end, such as a device."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", str(path))
            content = file.read(most + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most} bytes", str(path))
    return content


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # A pipe would wait for somebody who writes to it.


@contextmanager
def renames_undone_if_one_fails() -> Iterator[Callable[[Path, Path], None]]:
    """Gives a function that renames what there is. Raises `OSError` if undoing fails, too; the rest stays then."""
    done: list[tuple[Path, Path]] = []

    def move(source: Path, target: Path) -> None:
        if os.path.lexists(source):
            source.rename(target)
            done.append((source, target))

    try:
        yield move
    except BaseException:
        for source, target in reversed(done):
            target.rename(source)
        raise
