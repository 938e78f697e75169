"""`dragoman.db`: one file in WAL mode, one thread that writes, and a few that read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.adapters.sqlite_jobs import Together
from dragoman.adapters.sqlite_migrations import check_search, migrate, migrate_private
from dragoman.adapters.sqlite_readers import SqliteReaders
from dragoman.adapters.sqlite_trouble import SqliteTrouble
from dragoman.adapters.sqlite_version import SqliteVersion
from dragoman.adapters.sqlite_writer import SqliteWriter, Transaction
from dragoman.calls.places import Holder
from dragoman.errors import StorageBusy, StorageUnsupported
from dragoman.files import create_file, refuse_links
from dragoman.storage.migrations import Migration

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

FILE_NAME = "dragoman.db"
OLDEST_SQLITE = (3, 34, 0)
BUSY_SECONDS = 5.0


class SqliteDatabase:
    """One database, which other processes may have open as well. Nothing is created before the first use.

    When nothing is written for a moment, the functions in `tidying` make later reads and writes quicker. Each does one
    small step, and says whether there are more. With `make_private`, which makes the folder, the database is to end
    with the process: no write waits for the disk.
    """

    def __init__(
        self,
        path: Path,
        migrations: Sequence[Migration],
        *,
        tidying: Sequence[Callable[[sqlite3.Connection], bool]] = (),
        busy_seconds: float = BUSY_SECONDS,
        make_private: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self._migrations = migrations
        self._tidying = tidying
        self._busy_seconds = busy_seconds
        self._make_private = make_private
        self._opening = threading.Lock()
        self.trouble = SqliteTrouble(path)
        self._writer = SqliteWriter(
            self._connect_to_write,
            tidy=self.tidy,
            check=self.trouble.check,
            saw=self.trouble.saw,
            close=self.trouble.close_writing,
        )
        self._readers = SqliteReaders(self._connect_to_read, saw=self.trouble.saw, close=self.trouble.close)
        self.version = SqliteVersion(path, saw=self.trouble.saw, close=self.trouble.close)
        """Tells whether something has changed; from the event loop alone."""

    def write(self, function: Callable[[Transaction], T], weight: int = 1) -> Awaitable[T]:
        """As `SqliteWriter.run`."""
        return self._writer.run(function, weight)

    def write_together(self, together: Together, item: Any) -> Awaitable[Any]:
        """As `SqliteWriter.run_together`."""
        return self._writer.run_together(together, item)

    async def read(self, function: Callable[[sqlite3.Connection], T], holder: Holder | None = None) -> T:
        """As `SqliteReaders.run`. Sees every write that has been awaited."""
        return await self._readers.run(function, holder)

    async def close(self) -> None:
        """Finish what is queued, and take no more."""
        self.version.close()
        await self._readers.close()
        await self._writer.close()  # Last: whoever closes last tidies up the file.
        self.trouble.closed()

    def connect(self) -> sqlite3.Connection:
        """A connection to the newest version of the database, made if need be; transactions are up to the caller."""
        with self._opening:
            deadline = time.monotonic() + self._busy_seconds
            while True:
                try:
                    return self._open()
                except Exception as error:
                    # Two processes that make the same new file disturb each other in ways that no timeout covers.
                    is_busy = getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")
                    if not (is_busy or isinstance(error, StorageBusy)) or time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)

    def tidy(self, connection: sqlite3.Connection) -> bool:
        """Do one step; whether there are more. The last brings what was written from the log into the file."""
        if any(step(connection) for step in self._tidying):
            return True
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        return False

    def _connect_to_write(self) -> sqlite3.Connection:
        connection = self.connect()
        if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):  # Some file systems cannot have one.
            self.trouble.opened_to_write()
        # What undoes a savepoint is a file from 64 KB on, made and unlinked in each transaction.
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection

    def _connect_to_read(self) -> sqlite3.Connection:
        connection = self.connect()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        _check_library(sqlite3.sqlite_version_info)
        self.trouble.check_opening()  # What is missing is not made anew under a running server.
        if self._make_private is not None:
            self._make_private()
        _make_private_file(self.path)
        found = self.path.stat()
        connection = sqlite3.connect(
            self.path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            if not os.path.samestat(found, self.path.stat()):  # A restore, which nobody disturbs from here on.
                raise StorageBusy(f"{self.path} was replaced while it was opened")
            connection.execute(f"PRAGMA synchronous = {'FULL' if self._make_private is None else 'OFF'}")
            connection.execute("PRAGMA cache_size = -16384")
            connection.execute("PRAGMA journal_size_limit = 67108864")
            connection.execute(
                "PRAGMA wal_autocheckpoint = 4000"
            )  # A checkpoint writes each page once, however often it changed.
            (migrate if self._make_private is None else migrate_private)(connection, self._migrations)
            self.trouble.opened()
        except BaseException:
            connection.close()
            raise
        return connection


def describe_library() -> str:
    """What SQLite this Python has. Raises `StorageUnsupported` for one that cannot be used."""
    import sqlite3

    _check_library(sqlite3.sqlite_version_info)
    connection = sqlite3.connect(":memory:")
    try:
        check_search(connection)
    finally:
        connection.close()
    return f"{sqlite3.sqlite_version} with FTS5"


def has_reset_defect(version: tuple[int, int, int] | None = None) -> bool:
    """Whether SQLite, this Python's by default, can damage a database in WAL mode that several connections write to.

    One begins the log anew in the moment in which another brings it into the file. Versions from 3.51.3 on have the
    fix, and so have two older lines: https://sqlite.org/wal.html#walresetbug.
    """
    import sqlite3

    found = version or sqlite3.sqlite_version_info
    return found < (3, 51, 3) and not (3, 50, 7) <= found < (3, 51) and not (3, 44, 6) <= found < (3, 45)


def _check_library(version: tuple[int, int, int]) -> None:
    if version < OLDEST_SQLITE:
        needed, found = (".".join(map(str, numbers)) for numbers in (OLDEST_SQLITE, version))
        raise StorageUnsupported(f"SQLite {needed} or newer is needed, and this is {found}")


def _make_private_file(path: Path) -> None:
    """Nobody else's business. What exists already keeps its permissions. Raises `OSError` for a link."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        # Only ever a new file: closing a descriptor of one that SQLite has open would take its locks away.
        os.close(create_file(path))
    except FileExistsError:
        refuse_links(Path(path.name), path.parent)  # SQLite would follow it.
