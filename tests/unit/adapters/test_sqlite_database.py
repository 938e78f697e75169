"""The file: how it comes to be, which versions of it are taken, and what happens when it is not as it should be."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dragoman import adapters
from dragoman.adapters import sqlite_database
from dragoman.adapters.sqlite_database import SqliteDatabase, migrate, tidy
from dragoman.adapters.sqlite_memories import SqliteMemories
from dragoman.errors import InternalFailure
from dragoman.testing import ManualClock
from dragoman.tools.builtin.memory import Space
from tests.support.waiting import PATIENCE

FIRST = "CREATE TABLE a (x);\nINSERT INTO a VALUES ('; not the end');\n"
SECOND = "ALTER TABLE a ADD COLUMN y;"


def tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


async def reason(database: SqliteDatabase) -> tuple[Any, str]:
    """Why the database cannot be used, as a client and as the log would have it."""
    with pytest.raises(InternalFailure) as writing:
        await database.write(tables)
    with pytest.raises(InternalFailure) as reading:
        await database.read(tables)
    await database.close()
    assert writing.value.message == reading.value.message == "The server's storage failed"
    assert writing.value.details == reading.value.details
    return (writing.value.details or {})["reason"], str(writing.value.__cause__)


async def test_nothing_exists_before_the_first_use(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "data" / "dragoman.db")
    assert not (tmp_path / "data").exists()
    assert await database.read(lambda connection: connection.execute("SELECT 1").fetchone()) == (1,)
    assert (tmp_path / "data" / "dragoman.db").exists()
    await database.close()


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are others there")
async def test_the_folder_and_the_file_are_the_owners_alone(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "share" / "data" / "dragoman.db")
    await database.write(lambda connection: connection.execute("INSERT INTO memory_owner VALUES ('a', 1)"))
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in [database.path.parent, *sorted(database.path.parent.iterdir())]
    }
    assert modes == {"data": 0o700, "dragoman.db": 0o600, "dragoman.db-shm": 0o600, "dragoman.db-wal": 0o600}
    await database.close()


def link(path: Path, leads_to: Path) -> None:
    path.symlink_to(leads_to)


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.mark.parametrize("leads_to", [".", "gone.db"])
async def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path, leads_to: str) -> None:
    link(tmp_path / "dragoman.db", tmp_path / leads_to)
    _, cause = await reason(SqliteDatabase(tmp_path / "dragoman.db"))
    assert f"{tmp_path / 'dragoman.db'} is a link" in cause
    assert names_in(tmp_path) == ["dragoman.db"]


async def test_a_folder_that_is_a_link_is_followed_because_the_user_names_it(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link(tmp_path / "data", tmp_path / "disk")
    database = SqliteDatabase(tmp_path / "data" / "dragoman.db")
    await database.write(tables)
    await database.close()
    assert names_in(tmp_path / "disk") == ["dragoman.db"]


async def test_a_commit_waits_for_the_disk_and_readers_do_not_wait_for_writers(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "dragoman.db")
    settings = ("journal_mode", "synchronous")
    assert await database.write(
        lambda connection: [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
    ) == ["wal", 2]
    with pytest.raises(InternalFailure) as refused:
        await database.read(lambda connection: connection.execute("DELETE FROM memory_owner"))
    assert "readonly" in str(refused.value.__cause__)
    await database.close()


def test_each_migration_runs_once_and_in_order() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection, (FIRST,))
    migrate(connection, (FIRST,))
    assert connection.execute("SELECT * FROM a").fetchall() == [("; not the end",)]
    migrate(connection, (FIRST, SECOND))
    assert connection.execute("SELECT * FROM a").fetchall() == [("; not the end", None)]
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    broken = SqliteDatabase(path, migrations=(FIRST, "CREATE TABLE b (x); CREATE nonsense;"))
    assert (await reason(broken))[0] == "storage_failed"
    connection = sqlite3.connect(path)
    assert (tables(connection), connection.execute("PRAGMA user_version").fetchone()) == ([], (0,))
    connection.close()


async def test_a_database_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    newer = SqliteDatabase(path, migrations=(FIRST, SECOND))
    await newer.read(tables)
    await newer.close()
    said = await reason(SqliteDatabase(path, migrations=(FIRST,)))
    assert said == (
        "storage_unsupported",
        "the database is of version 2, and this Dragoman knows versions up to 1: a newer Dragoman has used it",
    )


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    path.write_bytes(b"my diary, which happens to have this name" * 100)
    assert await reason(SqliteDatabase(path)) == ("storage_corrupt", "file is not a database")
    assert path.read_bytes() == b"my diary, which happens to have this name" * 100


async def test_a_folder_that_cannot_be_made_is_unavailable_storage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert (await reason(SqliteDatabase(tmp_path / "file" / "dragoman.db")))[0] == "storage_unavailable"
    (tmp_path / "dragoman.db").mkdir()
    assert (await reason(SqliteDatabase(tmp_path / "dragoman.db")))[0] == "storage_unavailable"


async def test_a_folder_without_room_is_full_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sqlite_database, "_make_private_file", full)
    assert (await reason(SqliteDatabase(tmp_path / "dragoman.db")))[0] == "storage_full"


async def test_an_old_sqlite_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 33, 1))
    assert await reason(SqliteDatabase(tmp_path / "dragoman.db")) == (
        "storage_unsupported",
        "SQLite 3.34.0 or newer is needed, and this is 3.33.1",
    )


def test_a_sqlite_without_full_text_search_is_refused_by_name() -> None:
    class Without(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            return super().execute(sql.replace("'fts5'", "'fts99'"), *arguments)

    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Without)
    with pytest.raises(sqlite3.NotSupportedError, match="built without FTS5"):
        migrate(connection, (FIRST,))
    connection.close()


OPENS_AT_ONCE = """
import asyncio, sys
from pathlib import Path
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_memories import SqliteMemories
from dragoman.clock import SystemClock
from dragoman.tools.builtin.memory import Space

async def main():
    database = SqliteDatabase(Path(sys.argv[1]), busy_seconds=30)
    memories = SqliteMemories(database, 10**9, SystemClock())
    sys.stdin.readline()
    for number in range(20):
        await memories.store(Space("ada", "default"), f"{sys.argv[2]}-{number}", number)
    await database.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_processes_that_make_the_same_new_database_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    command = [sys.executable, "-c", OPENS_AT_ONCE, str(path)]
    others = [subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, text=True) for number in range(4)]
    for other in others:
        other.communicate("\n", timeout=PATIENCE)
    assert [other.returncode for other in others] == [0] * 4
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT entries FROM memory_space").fetchall() == [(80,)]
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_nothing_loads_the_driver_before_it_is_needed() -> None:
    code = (
        "import sys; sys.modules['sqlite3'] = None; "  # So that to import it is an error.
        "from dragoman.adapters import sqlite_memories, dict_memories, sqlite_database; "
        "from dragoman.tools.builtin import memory"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


async def test_a_new_file_that_somebody_else_is_busy_with_is_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    assert await reason(SqliteDatabase(path, busy_seconds=0.03)) == ("storage_busy", "database is locked")
    patient = SqliteDatabase(path, busy_seconds=30)
    reading = asyncio.ensure_future(patient.read(tables))
    await asyncio.sleep(0)
    other.execute("COMMIT")
    assert "memory_entry" in await reading
    other.close()
    await patient.close()


async def test_a_closed_database_takes_no_more(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "dragoman.db")
    assert await database.read(tables) != []
    await database.close()
    await database.close()
    for use in (database.read, database.write):
        with pytest.raises(InternalFailure) as refused:
            await use(tables)
        assert refused.value.details == {"reason": "storage_closed"}
    assert [path.name for path in database.path.parent.iterdir()] == ["dragoman.db"]


async def test_reads_run_side_by_side_and_see_one_moment_each(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "dragoman.db")
    await database.write(lambda connection: connection.execute("INSERT INTO memory_owner VALUES ('a', 1)") and None)
    together = threading.Barrier(3, timeout=PATIENCE)

    def read_twice(connection: sqlite3.Connection) -> list[int]:
        query = "SELECT count(*) FROM memory_owner"
        before = connection.execute(query).fetchone()[0]
        together.wait()  # All of them have begun to read,
        together.wait()  # and then something was written.
        return [before, connection.execute(query).fetchone()[0]]

    reading = [asyncio.ensure_future(database.read(read_twice)) for _ in range(2)]
    await asyncio.to_thread(together.wait)
    await database.write(lambda connection: connection.execute("INSERT INTO memory_owner VALUES ('b', 1)") and None)
    await asyncio.to_thread(together.wait)
    assert await asyncio.gather(*reading) == [[1, 1], [1, 1]]
    await database.close()


async def test_what_the_first_version_kept_is_there_and_found_in_the_newest(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "dragoman.db", isolation_level=None)
    migrate(connection, sqlite_database.MIGRATIONS[:1])
    connection.executescript(
        """
        INSERT INTO memory_owner VALUES ('ada', 30);
        INSERT INTO memory_space VALUES (1, 'ada', 'default', 2, 3);
        INSERT INTO memory_entry VALUES
          (4294967297, 1, 'k', 13, '2024-01-15T10:30:00.000Z', '"red"', '"red"'),
          (4294967299, 1, 'l', 17, '2024-01-15T10:30:01.000Z', '"red green"', '"red green"');
        INSERT INTO memory_word (rowid, words) VALUES
          (-4294967297, '00000001k 00000001red'), (-4294967299, '00000001l 00000001red 00000001green');
        """
    )
    connection.close()
    database, ada = SqliteDatabase(tmp_path / "dragoman.db"), Space("ada", "default")
    memories = SqliteMemories(database, 10**9, ManualClock())
    assert [item.key for item in (await memories.search(ada, ("red",), 9)).items] == ["l", "k"]
    assert [item.key for item in (await memories.search(ada, ("gre", "red"), 9)).items] == ["l"]
    await memories.store(ada, "l", "blue")
    assert await memories.delete(ada, ["k"]) == 1
    assert (await memories.search(ada, ("red",), 9)).items == ()
    assert [item.key for item in (await memories.search(ada, ("blue",), 9)).items] == ["l"]
    await database.close()


def pieces(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT count(DISTINCT segid) FROM memory_term_idx").fetchone()
    return int(count)


async def test_tidying_leaves_the_index_in_few_pieces_and_nothing_in_the_log(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "dragoman.db")
    memories = SqliteMemories(database, 10**9, ManualClock())
    for number in range(12):
        await memories.store(Space("ada", "default"), f"k{number}", f"word {number}")
    connection = database.connect()
    assert pieces(connection) == 12
    while tidy(connection):
        pass
    assert pieces(connection) == 1
    (_, in_log, brought_over) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    assert in_log == brought_over
    connection.close()
    assert len((await memories.search(Space("ada", "default"), ("word",), 20)).items) == 12
    await database.close()


def test_no_statement_numbers_its_placeholders() -> None:
    """Python 3.12 deprecates sequences of values for `?1`, and 3.14 refuses them."""
    for path in Path(adapters.__file__).parent.glob("sqlite_*.py"):
        assert not re.search(r"\?\d", path.read_text("utf-8")), path.name
