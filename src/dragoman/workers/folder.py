"""The folder that a parent and its workers share: the workers' sockets, and the files beside them.

1. Only this user can enter it.
2. Every process that uses it holds it. The last worker of a server that was killed removes it, or the next server to
   start does.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman import folders
from dragoman.folders import hold

LOG_TURNS = "log"
"""The file that processes lock to write to the log."""
_PREFIX = "dragoman-workers-"
_OURS = re.compile(rf"{LOG_TURNS}|[0-9]{{1,3}}-[0-9a-f]{{8}}(\.crash)?|[0-9a-f]{{16}}\.slots")
_LONGEST_ADDRESS = 90


def crash_file(folder: Path, name: str) -> Path:
    """The file that a worker writes its stack to when it crashes."""
    return folder / f"{name}.crash"


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder with a short name: addresses of sockets have to be. Raises `OSError` where there can be none."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        remove_if_unused(left)
    folder, let_go = _new_folder()
    while not folder.exists():  # Another server that starts took it for one that was left, before it was locked.
        let_go()
        folder, let_go = _new_folder()
    try:
        if len(str(folder)) > _LONGEST_ADDRESS:
            raise OSError(f"{folder} is too long for the address of a socket; set TMPDIR to a shorter one")
        yield folder
    finally:
        folders.remove(folder)
        let_go()


def remove_if_unused(folder: Path) -> None:
    """Remove the folder, unless somebody uses it."""
    folders.remove_if_unused(folder, _OURS)


def _new_folder() -> tuple[Path, Callable[[], None]]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with suppress(FileNotFoundError):  # Another server was as quick.
            return folder, hold(folder)
