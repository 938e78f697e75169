"""The folder that a parent and its workers share: the workers' sockets, and the files beside them.

1. Only this user can enter it.
2. Every process that uses it holds a shared lock on it, which ends with the process, however that ends.
3. A folder without a lock was left by a server that was killed. The last worker of that server removes it, or the next
   server to start; neither touches a folder that has anything else in it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.forks import drop, in_forked_children

LOG_TURNS = "log"
"""The file that processes lock to write to the log."""
_PREFIX = "dragoman-workers-"
_OURS = re.compile(rf"{LOG_TURNS}|[0-9]{{1,3}}-[0-9a-f]{{8}}(\.crash)?")
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
        shutil.rmtree(folder, ignore_errors=True)
        let_go()


def _new_folder() -> tuple[Path, Callable[[], None]]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with suppress(FileNotFoundError):  # Another server was as quick.
            return folder, hold(folder)


def hold(folder: Path) -> Callable[[], None]:
    """Lock the folder for this process; returns how to let go of it."""
    from fcntl import LOCK_SH, flock

    held = os.open(folder, os.O_RDONLY)
    flock(held, LOCK_SH)
    stop_dropping = in_forked_children(lambda: drop(held))

    def let_go() -> None:
        stop_dropping()
        os.close(held)

    return let_go


def remove_if_unused(folder: Path) -> None:
    """Remove the folder, unless somebody uses it."""
    from fcntl import LOCK_EX, LOCK_NB, flock

    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(opened).st_uid != os.getuid():
                return
            flock(opened, LOCK_EX | LOCK_NB)
            names = os.listdir(opened)
            if all(map(_OURS.fullmatch, names)):
                for name in names:
                    os.unlink(name, dir_fd=opened)
                os.rmdir(folder)
        finally:
            os.close(opened)
