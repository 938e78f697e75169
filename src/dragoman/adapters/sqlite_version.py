"""Whether a database has changed, found out without a thread and without waiting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3


class SqliteVersion:
    """Looks at the log's header in shared memory, in microseconds. Belongs to the event loop."""

    def __init__(
        self,
        path: Path,
        *,
        saw: Callable[[BaseException], None] = lambda error: None,
        close: Callable[[sqlite3.Connection], None] = lambda connection: connection.close(),
    ) -> None:
        """`saw` is told of every error. `close` closes a connection."""
        self._path = path
        self._saw = saw
        self._close = close
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False

    def now(self) -> int | None:
        """A number that changes with every commit, in whichever process; None when that cannot be told now."""
        import sqlite3  # Not before the database is used.

        if self._is_closed:
            return None
        try:
            if self._connection is None:
                # Only an existing file, and nobody is waited for.
                uri = f"{self._path.absolute().as_uri()}?mode=ro"
                self._connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None)
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error as error:
            self._saw(error)
            self._drop()
            return None
        return int(version)

    def close(self) -> None:
        """Tell nothing any more."""
        self._is_closed = True
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._close(connection)
