"""Files that are lost or damaged under a running process: nothing is written any more, and the storage says why."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_ledger_process import SqliteProcess
from dragoman.adapters.sqlite_runs import SqliteRuns
from dragoman.adapters.sqlite_trouble import SqliteTrouble
from dragoman.agents.migrations import MIGRATIONS as AGENTS
from dragoman.errors import StorageBusy, StorageCorrupt, StorageLost, StorageUnavailable, StorageUncertain
from dragoman.memories.migrations import MIGRATIONS as MEMORIES
from dragoman.memories.port import Memories, Space
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.contract.engines import PLENTY, STORAGES
from tests.support.waiting import until

ADA = Space("ada", "default")
LOST = "was deleted, moved or replaced: restart the server"


def _move(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))


def _replace(file: Path) -> None:
    file.with_name("other").write_bytes(file.read_bytes())
    file.with_name("other").replace(file)


def _files(folder: Path, pattern: str) -> list[Path]:
    return list(folder.rglob(pattern))


def _damage(file: Path, first: int) -> None:
    """Overwrite the first page, or all others."""
    with open(file, "r+b") as damaged:
        damaged.seek(first * 4096)
        damaged.write(b"\xff" * (4096 if first == 0 else file.stat().st_size - 4096))


LOSSES: dict[str, Callable[[Path], None]] = {"deleted": Path.unlink, "moved": _move, "replaced": _replace}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps files that are open")


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return STORAGES[request.param](tmp_path / "data", PLENTY, ManualClock())


@pytest.mark.parametrize("file", ["dragoman.db", "dragoman.db-wal", "dragoman.db-shm"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
async def test_nothing_is_written_once_a_file_is_lost(
    storage: Storage, tmp_path: Path, loss: Callable[[Path], None], file: str
) -> None:
    told: list[str] = []
    storage.tell_trouble = told.append
    memories = storage.port(Memories)
    assert storage.trouble() is None
    await memories.store(ADA, "k", 1)
    assert (storage.trouble(), told) == (None, [])
    (lost,) = _files(tmp_path, file)
    loss(lost)
    left = {each.name for each in lost.parent.iterdir()}
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match=LOST):
            await memories.store(ADA, "k", 2)
    assert (storage.trouble(), told) == ("replaced", ["replaced"])
    assert {each.name for each in lost.parent.iterdir()} <= left  # No new database in place of the lost one.
    await storage.close()


async def test_a_storage_that_is_only_asked_notices_the_loss(storage: Storage, tmp_path: Path) -> None:
    await storage.port(Memories).list(ADA, 1)
    _files(tmp_path, "dragoman.db")[0].unlink()
    assert storage.trouble() == "replaced"
    await storage.close()
    assert storage.trouble() == "replaced"


async def test_files_that_go_with_a_closed_storage_are_not_missed(storage: Storage, tmp_path: Path) -> None:
    await storage.port(Memories).store(ADA, "k", 1)
    await storage.close()
    for file in _files(tmp_path, "dragoman.db*"):
        file.unlink()
    assert storage.trouble() is None


async def test_the_outcome_of_a_commit_into_a_file_that_was_lost_meanwhile_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.db"
    database = SqliteDatabase(file, MEMORIES)
    with pytest.raises(StorageUncertain, match=LOST):
        await database.write(lambda writing: file.rename(tmp_path / "elsewhere"))
    with pytest.raises(StorageUnavailable, match=LOST):
        await database.write(lambda writing: None)
    await database.close()


async def test_the_watch_of_a_process_that_writes_nothing_notices_the_loss(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "dragoman.db", (*MEMORIES, *AGENTS))
    told: list[str] = []
    database.trouble.tell = told.append
    looks: list[None] = []
    runs = SqliteRuns(database, "space", SqliteProcess(database))
    runs.watch(lambda: looks.append(None), lambda: None, 10.0, lambda: True)
    try:
        await until(lambda: looks)
        (tmp_path / "dragoman.db").unlink()
        await until(lambda: told)
        assert told == ["replaced"]
    finally:
        await runs.close(0.0, b"{}")
        await database.close()


@pytest.mark.parametrize(("first", "asks"), [(0, "write"), (0, "read"), (1, "write"), (1, "read")])
async def test_damage_is_told_from_the_first_statement_that_meets_it(tmp_path: Path, first: int, asks: str) -> None:
    """Of page 0, which says that it is a database, and of the others, which have the tables."""
    file = tmp_path / "dragoman.db"
    made = SqliteDatabase(file, MEMORIES)
    await made.read(lambda connection: None)
    await made.close()
    database, told = SqliteDatabase(file, MEMORIES), list[str]()
    database.trouble.tell = told.append
    ask = database.read if asks == "read" else database.write
    await ask(lambda connection: None)
    with closing(sqlite3.connect(file)) as other:
        other.execute("CREATE TABLE other (id INTEGER)")  # So that what is cached is read again.
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert (database.trouble.reason, told) == (None, [])
    _damage(file, first)
    with pytest.raises(StorageCorrupt):
        await ask(lambda connection: connection.execute("SELECT * FROM memory_owner").fetchall())
    assert (database.trouble.reason, told) == ("damaged", ["damaged"])
    await database.close()


def test_a_log_that_another_thread_lets_go_and_makes_anew_during_a_look_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, log = tmp_path / "dragoman.db", tmp_path / "dragoman.db-wal"
    log.touch()
    log.with_name("dragoman.db-shm").touch()
    trouble, ask = SqliteTrouble(database), os.stat
    trouble.opened_to_write()

    def stat(path: str) -> os.stat_result:
        """The file is away for the look, and comes back with the same inode before its end."""
        monkeypatch.setattr(os, "stat", ask)
        with closing(sqlite3.connect(":memory:")) as connection:
            trouble.close_writing(connection)
        trouble.opened_to_write()
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "stat", stat)
    assert trouble.look() is None
    log.unlink()
    assert trouble.look() == "replaced"


async def test_a_database_on_files_that_can_have_no_log_is_written_and_missed_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def without_shared_memory(file: Path, **options: Any) -> sqlite3.Connection:
        return connect(f"{file.as_uri()}?vfs=unix-none", uri=True, **options)

    monkeypatch.setattr(sqlite3, "connect", without_shared_memory)
    database = SqliteDatabase(tmp_path / "dragoman.db", MEMORIES)
    for _ in range(2):
        await database.write(lambda writing: writing.execute("INSERT OR REPLACE INTO memory_owner VALUES ('a', 1)"))
    assert await database.read(lambda reading: reading.execute("PRAGMA journal_mode").fetchone()) == ("delete",)
    (tmp_path / "dragoman.db").unlink()
    with pytest.raises(StorageLost, match=LOST):
        await database.write(lambda writing: None)
    await database.close()


_ADD = "INSERT INTO memory_owner VALUES (?, 1)"


def _in_another_process(file: Path, statement: str, *values: str) -> list[Any]:
    script = (
        "import json, sys, sqlite3; from contextlib import closing\n"
        "with closing(sqlite3.connect(sys.argv[1])) as connection, connection:\n"
        "    print(json.dumps(connection.execute(sys.argv[2], sys.argv[3:]).fetchall()))"
    )
    command = [sys.executable, "-c", script, str(file), statement, *values]
    found: list[Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


@pytest.mark.slow
async def test_what_another_process_stores_beside_an_index_that_was_lost_stays_when_this_one_ends(
    tmp_path: Path,
) -> None:
    file = tmp_path / "dragoman.db"
    database = SqliteDatabase(file, MEMORIES)
    await database.write(lambda writing: writing.execute(_ADD, ("a",)))
    await database.read(lambda reading: None)
    file.with_name("dragoman.db-shm").unlink()
    _in_another_process(file, _ADD, "b")
    with pytest.raises(StorageLost, match=LOST):
        await database.write(lambda writing: writing.execute(_ADD, ("c",)))
    await database.close()
    again = SqliteDatabase(file, MEMORIES)  # In this process SQLite would go on with the old index.
    with pytest.raises(StorageLost, match="restart the process"):
        await again.read(lambda reading: None)
    await again.close()
    assert _in_another_process(file, "SELECT name FROM memory_owner ORDER BY name") == [["a"], ["b"]]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["dragoman.db-wal", "dragoman.db-shm"])
async def test_what_was_stored_before_a_loss_is_brought_into_the_database_at_the_end(tmp_path: Path, file: str) -> None:
    database = SqliteDatabase(tmp_path / "dragoman.db", MEMORIES)
    await database.write(lambda writing: writing.execute(_ADD, ("a",)))
    (tmp_path / file).unlink()
    with pytest.raises(StorageLost, match=LOST):
        await database.write(lambda writing: writing.execute(_ADD, ("b",)))
    await database.close()
    assert _in_another_process(tmp_path / "dragoman.db", "SELECT name FROM memory_owner") == [["a"]]


async def test_a_log_that_goes_with_the_last_connection_is_not_missed(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "dragoman.db", MEMORIES)

    def fail(writing: object) -> None:
        raise StorageBusy("another time")  # After which the connection is made anew.

    for _ in range(2):
        await database.write(lambda writing: writing.execute("INSERT OR REPLACE INTO memory_owner VALUES ('a', 1)"))
        with pytest.raises(StorageBusy):
            await database.write(fail)
        assert _files(tmp_path, "*-wal") == []
        assert database.trouble.look() is None
    await database.close()
