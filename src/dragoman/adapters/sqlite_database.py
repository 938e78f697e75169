"""`dragoman.db`: one file in WAL mode, one thread that writes, a few that read, and the history of its tables."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dragoman.adapters.sqlite_readers import SqliteReaders
from dragoman.adapters.sqlite_writer import SqliteWriter, Transaction
from dragoman.files import create_file, refuse_links
from dragoman.search.words import FEWEST_LETTERS_OF_A_BEGINNING, MOST_LETTERS

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

FILE_NAME = "dragoman.db"
OLDEST_SQLITE = (3, 34, 0)
BUSY_SECONDS = 5.0
_PAGES_AT_ONCE = 64

SPACE_DIGITS = 8
"""Each word is indexed behind the number of its space, in so many hexadecimal digits."""
_PREFIXES = " ".join(str(SPACE_DIGITS + n) for n in range(FEWEST_LETTERS_OF_A_BEGINNING, MOST_LETTERS))

_MEMORY = f"""
CREATE TABLE memory_owner (
  name TEXT PRIMARY KEY,
  bytes INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE memory_space (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  owner TEXT NOT NULL,
  namespace TEXT NOT NULL,
  entries INTEGER NOT NULL,
  stored INTEGER NOT NULL,
  UNIQUE (owner, namespace)
);

-- A new value is a new row: the id is the space's and below it, in 32 bits, how many it had stored. `value` comes last,
-- so that lists need not read it.
CREATE TABLE memory_entry (
  id INTEGER PRIMARY KEY,
  space INTEGER NOT NULL,
  key TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  updated_at TEXT NOT NULL,
  preview TEXT NOT NULL,
  value BLOB NOT NULL,
  UNIQUE (space, key)
);

-- Words as `search.words` has them: all that is ASCII here is a digit, a letter or a space. The row of an entry
-- has its id below zero: the last stored are found first, and where the index of a common word begins.
CREATE VIRTUAL TABLE memory_word USING fts5 (
  words,
  tokenize = 'ascii',
  columnsize = 0,
  prefix = '{_PREFIXES}'
);
"""

# What is indexed is kept with the entry, whose row is read and written anyway.
_TERMS = f"""
CREATE TABLE memory_entry_with_terms (
  id INTEGER PRIMARY KEY,
  space INTEGER NOT NULL,
  key TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  updated_at TEXT NOT NULL,
  preview TEXT NOT NULL,
  terms TEXT NOT NULL,
  value BLOB NOT NULL,
  UNIQUE (space, key)
);

INSERT INTO memory_entry_with_terms
SELECT id, space, key, bytes, updated_at, preview, words, value
FROM memory_entry CROSS JOIN memory_word ON memory_word.rowid = -id;

DROP TABLE memory_word;
DROP TABLE memory_entry;
ALTER TABLE memory_entry_with_terms RENAME TO memory_entry;

CREATE VIRTUAL TABLE memory_term USING fts5 (
  terms,
  content = '',
  tokenize = 'ascii',
  columnsize = 0,
  prefix = '{_PREFIXES}'
);

INSERT INTO memory_term (rowid, terms) SELECT -id, terms FROM memory_entry ORDER BY id DESC;
INSERT INTO memory_term (memory_term, rank) VALUES ('usermerge', 2);
"""

MIGRATIONS = (_MEMORY, _TERMS)
"""What makes each version of the database from the one before. Appended to, never changed."""


class SqliteDatabase:
    """One database, which other processes may have open as well. Nothing is created before the first use."""

    def __init__(
        self, path: Path, *, migrations: Sequence[str] = MIGRATIONS, busy_seconds: float = BUSY_SECONDS
    ) -> None:
        self.path = path
        self._migrations = migrations
        self._busy_seconds = busy_seconds
        self._opening = threading.Lock()
        self._writer = SqliteWriter(self.connect, tidy=tidy)
        self._readers = SqliteReaders(self._connect_to_read)

    async def write(self, function: Callable[[Transaction], T]) -> T:
        """As `SqliteWriter.run`."""
        return await self._writer.run(function)

    async def read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """As `SqliteReaders.run`. Sees every write that has been awaited."""
        return await self._readers.run(function)

    async def close(self) -> None:
        """Finish what is queued, and take no more."""
        await self._readers.close()
        await self._writer.close()  # Last: whoever closes last tidies up the file.

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
                    if not is_busy or time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)

    def _connect_to_read(self) -> sqlite3.Connection:
        connection = self.connect()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        _check_library(sqlite3.sqlite_version_info)
        _make_private_file(self.path)
        connection = sqlite3.connect(
            self.path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA cache_size = -16384")
            connection.execute("PRAGMA journal_size_limit = 67108864")
            connection.execute(
                "PRAGMA wal_autocheckpoint = 4000"
            )  # A checkpoint writes each page once, however often it changed.
            migrate(connection, self._migrations)
        except BaseException:
            connection.close()
            raise
        return connection


def migrate(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    """Bring the database to the newest version, in one transaction; refuse one that is newer still."""
    from sqlite3 import NotSupportedError

    if _version(connection) == len(migrations):
        return
    _check_search(connection)
    connection.execute("BEGIN IMMEDIATE")
    version = _version(connection)  # Again: another process may have been quicker.
    if version > len(migrations):
        raise NotSupportedError(
            f"the database is of version {version}, and this Dragoman knows versions up to {len(migrations)}: "
            "a newer Dragoman has used it"
        )
    for script in migrations[version:]:
        for statement in _statements(script):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(migrations)}")
    connection.execute("COMMIT")


def tidy(connection: sqlite3.Connection) -> bool:
    """Do a little of what makes later reads and writes quicker; whether there is more to do.

    The index of words comes to be in many pieces, each of which a search looks into: two of about the same size are
    made one. After that, what was written is brought from the log into the file.
    """
    before = connection.total_changes
    connection.execute(f"INSERT INTO memory_term (memory_term, rank) VALUES ('merge', {_PAGES_AT_ONCE})")
    if connection.total_changes - before > 1:  # One is this statement itself.
        return True
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    return False


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _statements(script: str) -> list[str]:
    """`executescript` would commit first."""
    from sqlite3 import complete_statement

    statements = [""]
    for piece in script.strip().removesuffix(";").split(";"):
        statements[-1] += f"{piece};"
        if complete_statement(statements[-1]):
            statements.append("")
    return statements[:-1]


def examine_library() -> str:
    """What SQLite this Python has; raises what is wrong with it."""
    import sqlite3

    _check_library(sqlite3.sqlite_version_info)
    connection = sqlite3.connect(":memory:")
    try:
        _check_search(connection)
    finally:
        connection.close()
    return f"{sqlite3.sqlite_version} with FTS5"


def _check_search(connection: sqlite3.Connection) -> None:
    if not connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone():
        from sqlite3 import NotSupportedError

        raise NotSupportedError("this SQLite was built without FTS5, which searching needs")


def _check_library(version: tuple[int, int, int]) -> None:
    if version < OLDEST_SQLITE:
        from sqlite3 import NotSupportedError

        needed, found = (".".join(map(str, numbers)) for numbers in (OLDEST_SQLITE, version))
        raise NotSupportedError(f"SQLite {needed} or newer is needed, and this is {found}")


def _make_private_file(path: Path) -> None:
    """Nobody else's business. What exists already keeps its permissions. Raises `OSError` for a link."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        # Only ever a new file: closing a descriptor of one that SQLite has open would take its locks away.
        os.close(create_file(path))
    except FileExistsError:
        refuse_links(Path(path.name), path.parent)  # SQLite would follow it.
