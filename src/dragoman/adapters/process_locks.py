"""Tells which processes on this machine are alive, by files that each of them keeps locked.

The system frees a lock when its process ends, however it ends. A stopped process keeps it: that one is found by its
silence instead, by processes that were awake meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dragoman.clock import boot_clock as boot_clock
from dragoman.files import open_or_create_file
from dragoman.forks import drop, in_forked_children

fcntl: Any
try:
    import fcntl
except ImportError:  # On Windows, silence alone tells.
    fcntl = None


def processes_with(file: Path) -> int:
    """How many processes have locks on a file, such as those of an open database; 0 where the system does not tell."""
    try:
        facts, listed = file.stat(), Path("/proc/locks").read_text()
    except OSError:
        return 0
    place = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    rows = (row.split() for row in listed.splitlines() if f" {place} " in row)
    return len({row[row.index(place) - 1] for row in rows})


class ProcessLocks:
    """The lock files in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, tuple[int, Callable[[], None]]] = {}
        """By process, the descriptor, and what ends that forked children let go of it."""

    def take(self, process: str) -> None:
        """Lock the file of a process until `give_back`, or until this process ends. Raises `OSError`."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = open_or_create_file(self._path(process))
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A child that a tool leaves behind would keep the lock of a server that has ended.
        self._held[process] = descriptor, in_forked_children(lambda: drop(descriptor))

    def give_back(self, process: str) -> None:
        """Unlock and remove the file."""
        if process in self._held:
            descriptor, undo = self._held.pop(process)
            undo()
            self.remove(process)
            os.close(descriptor)

    def remove(self, process: str) -> None:
        """Remove the file of a process that has ended."""
        self._path(process).unlink(missing_ok=True)

    def is_free(self, process: str) -> bool:
        """Whether nobody has the lock: the process has ended."""
        if fcntl is None:
            return not self._path(process).exists()
        try:
            descriptor = os.open(self._path(process), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def held(self) -> list[str]:
        """The processes that have a lock, by name, and the jobs that one of them leads."""
        return [file.stem for file in sorted(self._folder.glob("*.lock")) if not self.is_free(file.stem)]

    def _path(self, process: str) -> Path:
        return self._folder / f"{process}.lock"
