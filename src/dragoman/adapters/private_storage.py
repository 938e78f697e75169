"""The storage of a process that keeps nothing: a database in a temporary folder, which ends with the process.

The folder is for this user alone. It is removed when the storage is closed, and at the latest when the process ends. A
process that is killed leaves it, and the next process that makes one removes it.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from dragoman.adapters.sqlite_storage import SqliteStorage, examine_library, room_in
from dragoman.clock import Clock
from dragoman.errors import ConfigError, StorageClosed
from dragoman.findings import Finding
from dragoman.folders import hold, remove, remove_if_unused
from dragoman.storage.migrations import Migration
from dragoman.storage.settings import StorageConfig

if TYPE_CHECKING:
    from dragoman.adapters.sqlite_database import SqliteDatabase

PREFIX = "dragoman-memory-"
_CONTENT = re.compile(r"dragoman\.db(-wal|-shm)?|locks|artifacts")
_ADVICE = "Set TMPDIR to a folder that can be written."


class PrivateFolder:
    """A folder whose name nobody can guess. Its methods may be called from any thread."""

    def __init__(self, parent: Path) -> None:
        self.path = parent / f"{PREFIX}{uuid4().hex}"
        self._making = threading.Lock()
        self._held: list[Callable[[], None]] = []
        self._is_removed = False
        self._remove = weakref.finalize(self, _remove, self.path, self._held, os.getpid())

    def make(self) -> None:
        """Make the folder, unless it is there. Raises `OSError`, and `StorageClosed` once it has been removed."""
        with self._making:
            if self._is_removed:
                raise StorageClosed("the storage is closed")
            if not self._held:
                self.path.mkdir(mode=0o700, exist_ok=True)
                self._held.append(hold(self.path))
        _remove_those_left(self.path.parent)

    def remove(self) -> None:
        """Remove the folder with everything in it, if there is one."""
        with self._making:
            self._is_removed = True
            self._remove()


class PrivateStorage(SqliteStorage):
    """Implements `Storage`. `storage.data_dir` is ignored."""

    is_shared = False

    def __init__(self, config: StorageConfig, clock: Clock, migrations: Iterable[Migration]) -> None:
        super().__init__(config, clock, migrations)
        self._folder: PrivateFolder | None = None

    def _make_database(self) -> SqliteDatabase:
        self._folder = PrivateFolder(_temporary_folder())
        return self._database_in(self._folder.path, self._folder.make)

    def examine(self) -> Iterator[Finding]:
        try:
            folder = _temporary_folder()
        except ConfigError as error:
            ((_, said),) = error.problems
            yield Finding("storage", "problem", said, _ADVICE)
        else:
            yield room_in(folder, folder, _ADVICE)
        yield examine_library()

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            if self._folder is not None:
                self._folder.remove()


def _temporary_folder() -> Path:
    """The platform's. Raises `ConfigError` if there is none."""
    import tempfile

    try:
        return Path(tempfile.gettempdir())
    except OSError:
        raise ConfigError([("storage.engine", "memory needs a temporary folder, and none can be written")]) from None


def _remove(folder: Path, held: list[Callable[[], None]], process: int) -> None:
    if process != os.getpid():
        return  # A child that was forked ends, and its parent goes on.
    if folder.exists():
        remove(folder)
    while held:
        held.pop()()


@cache
def _remove_those_left(parent: Path) -> None:
    """Remove the folders of processes that were killed."""
    from dragoman.adapters.sqlite_database import FILE_NAME

    for folder in parent.glob(f"{PREFIX}*"):
        if (folder / FILE_NAME).exists():  # Or else it is being made: it is locked before the file is there.
            remove_if_unused(folder, _CONTENT)
