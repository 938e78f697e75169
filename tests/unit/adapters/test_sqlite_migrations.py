"""Migrations of a database: applied once, recorded, and all or nothing whatever interrupts them."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dragoman.adapters import sqlite_database
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_memories import SqliteMemories
from dragoman.adapters.sqlite_migrations import migrate
from dragoman.errors import StorageFailed, StorageFull, StorageUnsupported
from dragoman.memories.migrations import MIGRATIONS
from dragoman.memories.port import Item, MemoryEntry, Space
from dragoman.storage.migrations import Migration
from dragoman.testing import ManualClock
from tests.support.waiting import PATIENCE

ADA, NOTES, BOB = Space("ada", "default"), Space("ada", "notes"), Space("bob", "default")
FIRST = Migration("a", 1, "sqlite", "CREATE TABLE a (x);\nINSERT INTO a VALUES ('; not the end');\n")
SECOND = Migration("a", 2, "sqlite", "ALTER TABLE a ADD COLUMN y;")
OTHER = Migration("b", 1, "sqlite", "CREATE TABLE b (x);")
LANDED = Path(__file__).with_name("landed.db.gz")
"""A database of form 2, which the last version without the table `migration` made."""


def in_memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


def recorded(connection: sqlite3.Connection) -> list[tuple[str, int, str]]:
    return connection.execute("SELECT part, version, checksum FROM migration").fetchall()


def as_recorded(*migrations: Migration) -> list[tuple[str, int, str]]:
    return [(each.part, each.version, each.checksum) for each in migrations]


def contents(path: Path) -> dict[str, Any]:
    """All that a database holds: its form, and each table with its rows. An index of words is in ordinary tables."""
    with closing(sqlite3.connect(path)) as connection:
        (form,) = connection.execute("PRAGMA user_version").fetchone()
        tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        ordinary = [name for name, sql in tables if "VIRTUAL" not in sql]
        return {"form": form, **{name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in ordinary}}


async def failure(path: Path, migrations: Sequence[Migration]) -> StorageFailed:
    database = SqliteDatabase(path, migrations)
    with pytest.raises(StorageFailed) as failed:
        await database.read(recorded)
    await database.close()
    return failed.value


def test_each_migration_runs_once_and_in_order() -> None:
    with closing(in_memory()) as connection:
        migrate(connection, (FIRST,))
        migrate(connection, (FIRST,))
        assert connection.execute("SELECT * FROM a").fetchall() == [("; not the end",)]
        migrate(connection, (FIRST, SECOND, OTHER))
        assert connection.execute("SELECT * FROM a").fetchall() == [("; not the end", None)]
        assert recorded(connection) == as_recorded(FIRST, SECOND, OTHER)
        (moment,) = connection.execute("SELECT DISTINCT applied_at FROM migration WHERE part = 'b'").fetchone()
        assert (len(moment), moment[-1]) == (24, "Z")


def test_a_script_may_end_with_a_comment_and_without_a_semicolon() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        script = "CREATE TABLE one (a); -- first; of two\nCREATE TABLE two (b) -- second"
        migrate(connection, [Migration("bell", 1, "sqlite", script)])
        assert connection.execute("SELECT count(*) FROM one, two").fetchone() == (0,)


def test_a_script_that_ends_within_a_statement_is_refused() -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        script = "CREATE TABLE one (a); CREATE TABLE two (b DEFAULT 'c)"
        with pytest.raises(ValueError, match="ends within a statement: CREATE TABLE two"):
            migrate(connection, [Migration("bell", 1, "sqlite", script)])


def test_tables_of_a_part_that_the_program_lacks_are_left_alone() -> None:
    with closing(in_memory()) as connection:
        migrate(connection, (FIRST, SECOND))
        migrate(connection, (OTHER,))
        assert recorded(connection) == as_recorded(FIRST, SECOND, OTHER)


def test_a_database_that_is_up_to_date_is_only_read() -> None:
    statements: list[str] = []
    with closing(in_memory()) as connection:
        migrate(connection, MIGRATIONS)
        connection.set_trace_callback(statements.append)
        migrate(connection, MIGRATIONS)
    assert [statement.split()[0] for statement in statements] == ["PRAGMA", "SELECT"]


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    broken = Migration("a", 2, "sqlite", "CREATE TABLE b (x); CREATE nonsense;")
    assert type(await failure(path, (FIRST, broken))) is StorageFailed
    assert contents(path) == {"form": 0}


@pytest.mark.parametrize(
    ("migrations", "said"),
    [
        (
            (FIRST,),
            "the tables of a are of version 2, and this Dragoman knows versions up to 1: "
            "a newer Dragoman has used the database",
        ),
        (
            (FIRST, Migration("a", 2, "sqlite", "ALTER TABLE a ADD COLUMN z;")),
            "migration 2 of a was applied to the database with another script than this Dragoman's, whose checksum is "
            "cf5f694ba5d8",
        ),
    ],
)
async def test_tables_that_another_version_made_are_refused_and_left_alone(
    tmp_path: Path, migrations: tuple[Migration, ...], said: str
) -> None:
    path = tmp_path / FILE_NAME
    database = SqliteDatabase(path, (FIRST, SECOND))
    await database.read(recorded)
    await database.close()
    before = contents(path)
    refused = await failure(path, migrations)
    assert (type(refused), str(refused)) == (StorageUnsupported, said)
    assert contents(path) == before


async def test_a_record_of_a_newer_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 4")
    assert str(await failure(path, MIGRATIONS)) == (
        "the database is of form 4, and this Dragoman knows forms up to 3: a newer Dragoman has used it"
    )


def test_a_sqlite_without_full_text_search_is_refused_by_name() -> None:
    class Without(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            return super().execute(sql.replace("'fts5'", "'fts99'"), *arguments)

    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Without)
    with pytest.raises(StorageUnsupported, match="built without FTS5"):
        migrate(connection, (FIRST,))
    connection.close()


# Databases from before there was a record.


@pytest.fixture
def landed(tmp_path: Path) -> Path:
    path = tmp_path / FILE_NAME
    with gzip.open(LANDED) as packed, path.open("wb") as file:
        shutil.copyfileobj(packed, file)
    return path


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A database of form 1, the tables of which have to be made anew."""
    path = tmp_path / FILE_NAME
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(MIGRATIONS[0].script)
        connection.executescript(
            """
            INSERT INTO memory_owner VALUES ('ada', 30);
            INSERT INTO memory_space VALUES (1, 'ada', 'default', 2, 3);
            INSERT INTO memory_entry VALUES
              (4294967297, 1, 'k', 13, '2024-01-15T10:30:00.000Z', '"red"', '"red"'),
              (4294967299, 1, 'l', 17, '2024-01-15T10:30:01.000Z', '"red green"', '"red green"');
            INSERT INTO memory_word (rowid, words) VALUES
              (-4294967297, '00000001k 00000001red'), (-4294967299, '00000001l 00000001red 00000001green');
            PRAGMA user_version = 1;
            """
        )
    return path


async def found(memories: SqliteMemories, space: Space, *words: str) -> list[str]:
    return [item.key for item in (await memories.search(space, words, 9)).items]


async def test_a_database_of_the_landed_version_keeps_its_memories(landed: Path) -> None:
    database = SqliteDatabase(landed, MIGRATIONS)
    memories = SqliteMemories(database, 10**9, ManualClock())
    rollback = {"how": "make rollback", "when": "the error rate is above 2 %"}
    assert await memories.retrieve(ADA, "rollback") == MemoryEntry("rollback", rollback, 75, "2024-01-15T10:30:00.000Z")
    assert await memories.retrieve(ADA, "gone") is None
    port = Item("port", '{"http":8443}', 24, "2024-01-15T10:31:00.000Z")
    page = await memories.list(ADA, 9)
    assert (page.items[0], page.total) == (port, 2)
    assert await found(memories, ADA, "rollb", "error") == ["rollback"]
    assert await found(memories, ADA, "8000") == await found(memories, ADA, "deleted") == []
    assert await found(memories, NOTES, "unicode", "京") == ["tokyo"]
    assert await found(memories, BOB, "rollback") == ["rollback"]
    await memories.store(ADA, "rollback", "error free")
    assert await found(memories, ADA, "error") == ["rollback"]
    assert await memories.delete(NOTES, ["tokyo"]) == 1
    used = await database.read(lambda connection: connection.execute("SELECT * FROM memory_owner").fetchall())
    assert used == [("ada", 24 + 27), ("bob", 36)]
    await database.close()


async def test_a_database_of_the_landed_version_is_given_its_record_once(landed: Path) -> None:
    before = contents(landed)
    for _ in range(2):
        database = SqliteDatabase(landed, MIGRATIONS)
        assert await database.read(recorded) == as_recorded(*MIGRATIONS)
        await database.close()
    after = contents(landed)
    assert len(after.pop("migration")) == 2
    assert after == {**before, "form": 3}


async def test_a_database_of_the_first_version_is_migrated_from_there(first: Path) -> None:
    database = SqliteDatabase(first, MIGRATIONS)
    memories = SqliteMemories(database, 10**9, ManualClock())
    assert await found(memories, ADA, "red") == ["l", "k"]
    assert await found(memories, ADA, "gre", "red") == ["l"]
    await memories.store(ADA, "l", "blue")
    assert await memories.delete(ADA, ["k"]) == 1
    assert await found(memories, ADA, "red") == []
    assert await found(memories, ADA, "blue") == ["l"]
    assert await database.read(recorded) == as_recorded(*MIGRATIONS)
    await database.close()


async def test_a_database_of_the_landed_version_waits_for_a_program_with_memories(landed: Path) -> None:
    before = contents(landed)
    assert "only a Dragoman with memories can migrate" in str(await failure(landed, (FIRST,)))
    assert contents(landed) == before


@pytest.mark.parametrize("kind", ["landed", "first"])
async def test_a_disk_that_is_full_leaves_the_database_as_it_was(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    path: Path = request.getfixturevalue(kind)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")  # No page is free.

    def migrate_without_room(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        migrate(connection, migrations)

    before = contents(path)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_database, "migrate", migrate_without_room)
        assert type(await failure(path, MIGRATIONS)) is StorageFull
    assert contents(path) == before
    database = SqliteDatabase(path, MIGRATIONS)
    assert await database.read(recorded) == as_recorded(*MIGRATIONS)
    await database.close()


STOPS_BEFORE_A_STATEMENT = """
import sqlite3, sys
from dragoman.adapters.sqlite_migrations import migrate
from dragoman.memories.migrations import MIGRATIONS

def trace(statement):
    if statement.strip().startswith(sys.argv[2]):
        print("there", flush=True)
        sys.stdin.read()

connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA journal_mode = WAL")
connection.set_trace_callback(trace)
migrate(connection, MIGRATIONS)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "statement"),
    [
        ("landed", "INSERT INTO migration"),
        ("landed", "PRAGMA user_version = "),
        ("landed", "COMMIT"),
        ("first", "DROP TABLE memory_entry"),
        ("first", "COMMIT"),
    ],
)
def test_a_process_that_is_killed_in_a_migration_leaves_the_database_as_it_was(
    kind: str, statement: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(kind)
    before = contents(path)
    command = [sys.executable, "-c", STOPS_BEFORE_A_STATEMENT, str(path), statement]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.kill()
    assert contents(path) == before
    with closing(SqliteDatabase(path, MIGRATIONS).connect()) as connection:
        assert recorded(connection) == as_recorded(*MIGRATIONS)


OPENS_AT_ONCE = """
import asyncio, sys
from pathlib import Path
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_memories import SqliteMemories
from dragoman.clock import SystemClock
from dragoman.memories.migrations import MIGRATIONS
from dragoman.memories.port import Space

async def main():
    database = SqliteDatabase(Path(sys.argv[1]), MIGRATIONS, busy_seconds=30)
    memories = SqliteMemories(database, 10**9, SystemClock())
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(20):
        await memories.store(Space("eve", "default"), f"{sys.argv[2]}-{number}", number)
    await database.close()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["new", "landed", "first"])
def test_processes_that_open_the_same_database_at_once_do_not_disturb_each_other(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = tmp_path / FILE_NAME if kind == "new" else request.getfixturevalue(kind)
    command = [sys.executable, "-c", OPENS_AT_ONCE, str(path)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    others = [subprocess.Popen([*command, str(number)], **pipes) for number in range(4)]
    for other in others:
        assert other.stdout.readline() == "ready\n"
    for other in others:
        other.stdin.write("\n")
        other.stdin.flush()
    for other in others:
        other.communicate(timeout=PATIENCE)
    assert [other.returncode for other in others] == [0] * 4
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT entries FROM memory_space WHERE owner = 'eve'").fetchall() == [(80,)]
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert recorded(connection) == as_recorded(*MIGRATIONS)
