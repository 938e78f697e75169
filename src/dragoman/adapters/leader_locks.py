"""Decides between processes on one machine which of them does something, by files that the leader keeps locked.

1. The system frees a lock when its process ends, however it ends.
2. The files stay. Removing one would let two processes lead: one with the old file open, one with a new file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dragoman.files import open_or_create_file
from dragoman.forks import drop, in_forked_children

fcntl: Any
try:
    import fcntl
except ImportError:  # On Windows every process leads. Jobs that run twice do the same as those that run once.
    fcntl = None


JOB_PREFIX = "job-"
"""Of the names of the files. Processes have theirs in the same folder."""


class LeaderLocks:
    """The locks that this process has in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}
        # A child that a tool leaves behind would keep the locks of a server that has ended.
        self._undo = in_forked_children(lambda: drop(*self._held.values()))

    def has(self, name: str) -> bool:
        """Whether this process leads."""
        return name in self._held

    def take(self, name: str) -> bool:
        """Lead from now on, unless another process does. Raises `OSError`."""
        if name in self._held:
            return True
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = open_or_create_file(self._folder / f"{JOB_PREFIX}{name}.lock")
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._held[name] = descriptor
        return True

    def give_back(self) -> None:
        """Lead no more."""
        self._undo()
        while self._held:
            _, descriptor = self._held.popitem()
            os.close(descriptor)
