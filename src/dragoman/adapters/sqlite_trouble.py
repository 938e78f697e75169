"""Troubles of a database that last until the process is restarted: its files are no longer there, or are damaged.

1. The files that were opened are the database. When a path leads to another file, or to none, nothing is written any
   more: nobody who opens the database would find it. SQLite itself would go on, in files that have no name.
2. The log belongs to the database as the file does: without it, its latest commits are missing.
3. Damage counts from the first statement that met it. Others may still succeed, as they read other pages.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dragoman.adapters.sqlite_errors import storage_error
from dragoman.errors import StorageCorrupt, StorageLost

DAMAGED: Final = "damaged"
REPLACED: Final = "replaced"


class SqliteTrouble:
    """What has been noticed of one database. The methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._path, self._log = str(path), f"{path}-wal"
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
        """Remember the log, where there is one. It is there for as long as the connection that writes is open."""
        self._remember(self._log)

    def leaves(self) -> None:
        """Forget the log: the connection that writes is about to be closed, and the last one that is takes it along."""
        self._files.pop(self._log, None)

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
        found = os.stat(path)
        self._files[path] = found.st_dev, found.st_ino

    def _is_lost(self, path: str, known: tuple[int, int]) -> bool:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            return False  # It cannot be told now.
        else:
            if (found.st_dev, found.st_ino) == known:
                return False
        # Another thread may have let it go meanwhile, and have remembered a new one with the number of the old.
        return self._files.get(path) is known

    def _note(self, reason: str) -> None:
        with self._noting:
            if self.reason is not None:
                return
            self.reason = reason
        self.tell(reason)
