"""Applies migrations to a database, all that are pending in one transaction, and records them in its `migration` table.

`user_version` counts the forms of that record. In forms 1 and 2 there was no table, and the number was the version of
the only tables there were, those of memories: such a database is given its record when it is opened.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from dragoman.errors import StorageUnsupported
from dragoman.storage.migrations import Migration, pending

if TYPE_CHECKING:
    import sqlite3

_FORM = 3
_FIRST_PART = "memories"
_RECORD = """
CREATE TABLE migration (
  part TEXT NOT NULL,
  version INTEGER NOT NULL,
  checksum TEXT NOT NULL,
  applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
  PRIMARY KEY (part, version)
) WITHOUT ROWID
"""


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Make the tables what `migrations` describe. Raises `StorageUnsupported` as `pending` does; the caller then closes
    the connection, which undoes what was begun."""
    if _form(connection) == _FORM and not pending(_applied(connection), migrations):
        return
    check_search(connection)
    connection.execute("BEGIN IMMEDIATE")
    form = _form(connection)  # Again: another process may have been quicker.
    if form > _FORM:
        raise StorageUnsupported(
            f"the database is of form {form}, and this Dragoman knows forms up to {_FORM}: a newer Dragoman has used it"
        )
    if form < _FORM:
        _begin_record(connection, form, migrations)
    for migration in pending(_applied(connection), migrations):
        for statement in _statements(migration.script):
            connection.execute(statement)
        _record(connection, [migration])
    connection.execute("COMMIT")


def migrate_private(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """As `migrate`, for a database that no other process has: an empty one becomes a copy, which is much quicker."""
    if _form(connection) == 0:
        with _copying:
            _template(tuple(migrations)).backup(connection)
    migrate(connection, migrations)


_copying = threading.Lock()


@lru_cache(maxsize=2)
def _template(migrations: tuple[Migration, ...]) -> sqlite3.Connection:
    import sqlite3

    made = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    migrate(made, migrations)
    return made


def check_search(connection: sqlite3.Connection) -> None:
    """Raises `StorageUnsupported` if this SQLite cannot search text."""
    if not connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone():
        raise StorageUnsupported("this SQLite was built without FTS5, which searching needs")


def _form(connection: sqlite3.Connection) -> int:
    (form,) = connection.execute("PRAGMA user_version").fetchone()
    return int(form)


def _applied(connection: sqlite3.Connection) -> dict[tuple[str, int], str]:
    rows = connection.execute("SELECT part, version, checksum FROM migration")
    return {(part, version): checksum for part, version, checksum in rows}


def _begin_record(connection: sqlite3.Connection, version: int, migrations: Iterable[Migration]) -> None:
    """Create the table, with what a database without one must have gone through to be of this version."""
    before = [each for each in migrations if each.part == _FIRST_PART and each.version <= version]
    if len(before) < version:
        raise StorageUnsupported(f"only a Dragoman with {_FIRST_PART} can migrate this database")
    connection.execute(_RECORD)
    _record(connection, before)
    connection.execute(f"PRAGMA user_version = {_FORM}")


def _record(connection: sqlite3.Connection, applied: Iterable[Migration]) -> None:
    connection.executemany(
        "INSERT INTO migration (part, version, checksum) VALUES (?, ?, ?)",
        [(each.part, each.version, each.checksum) for each in applied],
    )


def _statements(script: str) -> list[str]:
    """`executescript` would commit first. Raises `ValueError` for a script that ends within a statement."""
    from sqlite3 import complete_statement

    statements = [""]
    for piece in f"{script}\n".split(";"):
        statements[-1] += f"{piece};"
        if complete_statement(statements[-1]):
            statements.append("")
    if statements[-1]:
        raise ValueError(f"a migration ends within a statement: {statements[-1].strip()[:80]}")
    return statements[:-1]
