"""The file: how it comes to be, and what happens when it is not as it should be."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from dragoman import adapters
from dragoman.adapters import sqlite_database
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.errors import (
    StorageBusy,
    StorageClosed,
    StorageCorrupt,
    StorageFailed,
    StorageFull,
    StorageUnavailable,
    StorageUnsupported,
)
from dragoman.memories.migrations import MIGRATIONS
from tests.support.waiting import PATIENCE, until


def tables(connection: sqlite3.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


async def failure(database: SqliteDatabase) -> tuple[type[StorageFailed], str]:
    """Why the database cannot be used."""
    with pytest.raises(StorageFailed) as writing:
        await database.write(tables)
    with pytest.raises(StorageFailed) as reading:
        await database.read(tables)
    await database.close()
    assert (type(writing.value), str(writing.value)) == (type(reading.value), str(reading.value))
    return type(writing.value), str(writing.value)


_HOLD = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(descriptor, fcntl.LOCK_EX, 510, 0x40000002)
print("held", flush=True)
sys.stdin.readline()
"""


@contextmanager
def held_alone(file: Path) -> Iterator[None]:
    """Have another process keep everybody else from a database, as a restore does."""
    command = [sys.executable, "-c", _HOLD, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            holder.communicate(b"\n")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows renames no file that is open")
async def test_a_process_that_starts_while_a_backup_is_restored_uses_the_restored_database(tmp_path: Path) -> None:
    file, kept, restored = (tmp_path / name for name in ("dragoman.db", "kept.db", "restored.db"))
    add = "INSERT INTO memory_owner VALUES (?, 1)"
    for each in (file, restored):
        made = SqliteDatabase(each, MIGRATIONS)
        await made.write(lambda writing, name=each.stem: writing.execute(add, (name,)))
        await made.close()
    database = SqliteDatabase(file, MIGRATIONS)
    with held_alone(file):
        adding = asyncio.ensure_future(database.write(lambda writing: writing.execute(add, ("new",))))
        await until(lambda: str(file) in [each.path for each in psutil.Process().open_files()])
        file.rename(kept)
        restored.rename(file)
    await adding
    await database.close()
    for each, expected in ((file, ["new", "restored"]), (kept, ["dragoman"])):
        with closing(sqlite3.connect(each)) as found:
            assert [name for (name,) in found.execute("SELECT name FROM memory_owner ORDER BY name")] == expected


async def test_nothing_exists_before_the_first_use(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "data" / "dragoman.db", MIGRATIONS)
    assert not (tmp_path / "data").exists()
    assert await database.read(lambda connection: connection.execute("SELECT 1").fetchone()) == (1,)
    assert (tmp_path / "data" / "dragoman.db").exists()
    await database.close()


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are others there")
async def test_the_folder_and_the_file_are_the_owners_alone(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "share" / "data" / "dragoman.db", MIGRATIONS)
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
    _, cause = await failure(SqliteDatabase(tmp_path / "dragoman.db", MIGRATIONS))
    assert f"{tmp_path / 'dragoman.db'} is a link" in cause
    assert names_in(tmp_path) == ["dragoman.db"]


async def test_a_folder_that_is_a_link_is_followed_because_the_user_names_it(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link(tmp_path / "data", tmp_path / "disk")
    database = SqliteDatabase(tmp_path / "data" / "dragoman.db", MIGRATIONS)
    await database.write(tables)
    await database.close()
    assert names_in(tmp_path / "disk") == ["dragoman.db"]


async def test_a_commit_waits_for_the_disk_and_readers_do_not_wait_for_writers(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "dragoman.db", MIGRATIONS)
    settings = ("journal_mode", "synchronous")
    assert await database.write(
        lambda connection: [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
    ) == ["wal", 2]
    with pytest.raises(StorageUnavailable, match="readonly"):
        await database.read(lambda connection: connection.execute("DELETE FROM memory_owner"))
    await database.close()


REWRITE = """
import asyncio, os, sqlite3, sys
from pathlib import Path
from dragoman.adapters.sqlite_database import SqliteDatabase

N = "WITH n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n WHERE i < 100)"

def rewrite(connection):
    connection.execute("UPDATE large SET body = randomblob(4000)")

async def main():
    database = SqliteDatabase(Path(sys.argv[1]), ())
    await database.write(lambda writing: writing.execute("CREATE TABLE large (number INTEGER PRIMARY KEY, body BLOB)"))
    await database.write(lambda writing: writing.execute(f"{N} INSERT INTO large SELECT i, zeroblob(4000) FROM n"))
    await database.write(rewrite)
    print(os.stat(os.environ["SQLITE_TMPDIR"]).st_mtime_ns)
    await database.close()
    connection = sqlite3.connect(sys.argv[1])
    connection.execute("PRAGMA temp_store = FILE")
    connection.execute("SAVEPOINT job")
    rewrite(connection)
    print(os.stat(os.environ["SQLITE_TMPDIR"]).st_mtime_ns)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="temporary files are elsewhere there")
def test_a_large_write_makes_no_temporary_files(tmp_path: Path) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    before = folder.stat().st_mtime_ns  # What is made there changes it, even if that is unlinked at once.
    env = os.environ | {"SQLITE_TMPDIR": str(folder)}
    argv = (sys.executable, "-c", REWRITE, str(tmp_path / "dragoman.db"))
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE, check=True)
    ours, with_files = map(int, done.stdout.split())
    assert ours == before
    assert with_files > before


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    path.write_bytes(b"my diary, which happens to have this name" * 100)
    assert await failure(SqliteDatabase(path, MIGRATIONS)) == (StorageCorrupt, "file is not a database")
    assert path.read_bytes() == b"my diary, which happens to have this name" * 100


async def test_a_folder_that_cannot_be_made_is_unavailable_storage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert (await failure(SqliteDatabase(tmp_path / "file" / "dragoman.db", MIGRATIONS)))[0] == StorageUnavailable
    (tmp_path / "dragoman.db").mkdir()
    assert (await failure(SqliteDatabase(tmp_path / "dragoman.db", MIGRATIONS)))[0] == StorageUnavailable


async def test_a_folder_without_room_is_full_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sqlite_database, "_make_private_file", full)
    assert (await failure(SqliteDatabase(tmp_path / "dragoman.db", MIGRATIONS)))[0] == StorageFull


async def test_an_old_sqlite_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 33, 1))
    assert await failure(SqliteDatabase(tmp_path / "dragoman.db", MIGRATIONS)) == (
        StorageUnsupported,
        "SQLite 3.34.0 or newer is needed, and this is 3.33.1",
    )


def test_no_statement_needs_a_newer_sqlite_than_the_oldest() -> None:
    """3.35 brought RETURNING, and DO UPDATE without naming the constraint."""
    sources = [path.read_text("utf-8") for path in Path(adapters.__path__[0]).glob("sqlite_*.py")]
    assert len(sources) > 10
    assert [found for source in sources for found in re.findall(r"CONFLICT DO UPDATE|\bRETURNING\b", source)] == []


@pytest.mark.slow
def test_nothing_loads_the_driver_before_it_is_needed() -> None:
    code = (
        "import sys; sys.modules['sqlite3'] = None; "  # So that to import it is an error.
        "from dragoman.adapters import engines, sqlite_memories, sqlite_database; "
        "from dragoman.memories import tools"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


async def test_a_new_file_that_somebody_else_is_busy_with_is_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    assert await failure(SqliteDatabase(path, MIGRATIONS, busy_seconds=0.03)) == (StorageBusy, "database is locked")
    patient = SqliteDatabase(path, MIGRATIONS, busy_seconds=30)
    reading = asyncio.ensure_future(patient.read(tables))
    await asyncio.sleep(0)
    other.execute("COMMIT")
    assert "memory_entry" in await reading
    other.close()
    await patient.close()


async def test_a_closed_database_takes_no_more(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "dragoman.db", MIGRATIONS)
    assert await database.read(tables) != []
    await database.close()
    await database.close()
    for use in (database.read, database.write):
        with pytest.raises(StorageClosed):
            await use(tables)
    assert [path.name for path in database.path.parent.iterdir()] == ["dragoman.db"]


async def test_reads_run_side_by_side_and_see_one_moment_each(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "dragoman.db", MIGRATIONS)
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


def test_no_statement_numbers_its_placeholders() -> None:
    """Python 3.12 deprecates sequences of values for `?1`, and 3.14 refuses them."""
    for path in Path(adapters.__file__).parent.glob("sqlite_*.py"):
        assert not re.search(r"\?\d", path.read_text("utf-8")), path.name
