"""Troubles of a database that last until the process is restarted: its files are no longer there, or are damaged.

1. The files that were opened are the database. When a path leads to another file, or to none, nothing is written any
   more: nobody who opens the database would find it. SQLite itself would go on, in files that have no name.
2. The log belongs to the database as the file does: without it, its latest commits are missing. So does the index of
   the log, in which all processes lock: a process that makes it anew would overwrite the commits of the others.
3. The last connection that is closed brings the log into the database, and removes log and index by their names. Where
   another process has made one of them anew, that would undo what the other one stores: connections are left to the
   system then, and this process cannot open the database again.
4. Damage counts from the first statement that met it. Others may still succeed, as they read other pages.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dragoman.adapters.sqlite_errors import storage_error
from dragoman.errors import StorageCorrupt, StorageLost

if TYPE_CHECKING:
    import sqlite3

DAMAGED: Final = "damaged"
REPLACED: Final = "replaced"


class SqliteTrouble:
    """What has been noticed of one database. The methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._path, self._log = str(path), (f"{path}-wal", f"{path}-shm")
        self._files: dict[str, tuple[int, int]] = {}
        self._noting = threading.Lock()
        self._is_replaced = False
        self.reason: str | None = None
        """`DAMAGED` or `REPLACED`, whichever came first; None so far."""
        self.tell: Callable[[str], None] = lambda reason: None
        """Called once, with the reason, on the thread that noticed it."""

    def opened(self) -> None:
        """Remember the file, which has just been opened; the first one only."""
        if self._path not in self._files:
            self._remember(self._path)

    def opened_to_write(self) -> None:
        """Remember the log and its index, where there is one. They stay while the connection that writes is open."""
        for each in self._log:
            self._remember(each)

    def close(self, connection: sqlite3.Connection) -> None:
        """Close a connection, unless files were made anew: then the system closes it when the process ends."""
        if self.look() is not None and any(_is_another(*each) for each in tuple(self._files.items())):
            _leave_open(connection, self._files.get(self._path))
        else:
            connection.close()

    def close_writing(self, connection: sqlite3.Connection) -> None:
        """The same for the connection that writes. The log is forgotten: the last one that is closed takes it along."""
        self.look()
        for each in () if self._is_replaced else self._log:
            self._files.pop(each, None)
        self.close(connection)

    def check_opening(self) -> None:
        """Raise `StorageLost` if the database cannot be opened in this process, now or ever."""
        self.check()
        try:
            was_left = _identity(self._path) in _LEFT
        except OSError:
            return  # There is none, or nobody can tell.
        if was_left:
            raise StorageLost(f"{self._path} was open when files beside it were replaced: restart the process")

    def check(self) -> None:
        """Raise `StorageLost` if the files are not those that were opened, now or at an earlier look."""
        if not self._is_replaced and any(self._is_lost(*each) for each in tuple(self._files.items())):
            self._is_replaced = True
            self._note(REPLACED)
        if self._is_replaced:
            raise StorageLost(f"{self._path} was deleted, moved or replaced: restart the server")

    def saw(self, error: BaseException) -> None:
        """Look whether an error, of any statement, is about damage."""
        if isinstance(storage_error(error), StorageCorrupt):
            self.note_damage()

    def note_damage(self) -> None:
        """A statement has found damage, here or in another process."""
        self._note(DAMAGED)

    def look(self) -> str | None:
        """The reason, after a look at the files."""
        try:
            self.check()
        except StorageLost:
            pass
        return self.reason

    def closed(self) -> None:
        """The files may go now."""
        self._files.clear()

    def _remember(self, path: str) -> None:
        self._files[path] = _identity(path)

    def _is_lost(self, path: str, known: tuple[int, int]) -> bool:
        try:
            if _identity(path) == known:
                return False
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            return False  # It cannot be told now.
        # Another thread may have let it go meanwhile, and have remembered a new one with the number of the old.
        return self._files.get(path) is known

    def _note(self, reason: str) -> None:
        with self._noting:
            if self.reason is not None:
                return
            self.reason = reason
        self.tell(reason)


_LEFT: set[tuple[int, int]] = set()
"""Databases with connections that were left open. SQLite would share the old index with new ones."""


def _identity(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _is_another(path: str, known: tuple[int, int]) -> bool:
    """Whether a path leads to another file that has something in it."""
    try:
        return _identity(path) != known and os.path.getsize(path) > 0
    except OSError:
        return False


def _leave_open(connection: sqlite3.Connection, database: tuple[int, int] | None) -> None:
    """Keep a connection from being closed, at the end of the interpreter, too."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    if database is not None:
        _LEFT.add(database)
