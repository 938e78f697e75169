"""The writer: many writes, one commit, and each of them right or not there at all."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.adapters.sqlite_writer import MOST_WEIGHT, SqliteWriter, Transaction
from dragoman.errors import (
    NotFound,
    OverQuota,
    StorageBusy,
    StorageClosed,
    StorageFailed,
    StorageFull,
    StorageUnavailable,
    StorageUncertain,
    TooManyWrites,
)
from tests.support.waiting import PATIENCE


class Database:
    """A file with one table, which counts commits and connections."""

    def __init__(self, path: Path, busy_seconds: float = 5.0) -> None:
        self.path = path
        self.busy_seconds = busy_seconds
        self.statements: list[str] = []
        self.connections: list[sqlite3.Connection] = []
        self.before_connecting: Callable[[], None] = lambda: None
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE item (name UNIQUE)")
        connection.close()

    def connect(self) -> sqlite3.Connection:
        self.before_connecting()
        connection = sqlite3.connect(
            self.path, timeout=self.busy_seconds, isolation_level=None, check_same_thread=False
        )
        connection.set_trace_callback(self.statements.append)
        self.connections.append(connection)
        return connection

    @property
    def commits(self) -> int:
        return self.statements.count("COMMIT")

    def items(self) -> list[str]:
        connection = sqlite3.connect(self.path)
        try:
            return [name for (name,) in connection.execute("SELECT name FROM item ORDER BY rowid")]
        finally:
            connection.close()


def insert(name: str) -> Callable[[Transaction], str]:
    def run(transaction: Transaction) -> str:
        transaction.execute("INSERT INTO item VALUES (?)", (name,))
        return name

    return run


def insert_later(order: int, name: str, error: Exception | None = None) -> Callable[[Transaction], str]:
    def run(transaction: Transaction) -> str:
        transaction.later.append((order, "INSERT INTO item VALUES (?)", (name,)))
        if error is not None:
            raise error
        return name

    return run


def insert_and_raise(name: str, error: BaseException) -> Callable[[Transaction], str]:
    def run(transaction: Transaction) -> str:
        insert(name)(transaction)
        raise error

    return run


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "test.db")


@pytest.fixture
async def writer(database: Database) -> AsyncIterator[SqliteWriter]:
    writer = SqliteWriter(database.connect)
    yield writer
    await writer.close()


class Held:
    """A job that keeps the writer busy until it is let go, so that what comes next is one group."""

    def __init__(self, writer: SqliteWriter) -> None:
        self._begun = threading.Event()
        self._release = threading.Event()
        self._job = asyncio.ensure_future(writer.run(self._hold))

    def _hold(self, transaction: Transaction) -> None:
        self._begun.set()
        assert self._release.wait(PATIENCE)

    async def begun(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, PATIENCE)

    async def release(self) -> None:
        self._release.set()
        await self._job


async def as_one_group(writer: SqliteWriter, *functions: Callable[[Transaction], Any]) -> list[Any]:
    """What came of functions that were all waiting when the last commit ended."""
    held = Held(writer)
    await held.begun()
    jobs = [asyncio.ensure_future(writer.run(function)) for function in functions]
    await asyncio.sleep(0)  # Each of them puts its function into the queue.
    await held.release()
    return await asyncio.gather(*jobs, return_exceptions=True)


async def test_a_group_ends_before_it_writes_too_much(writer: SqliteWriter, database: Database) -> None:
    held = Held(writer)
    await held.begun()
    heavy = [asyncio.ensure_future(writer.run(insert(f"n{n}"), MOST_WEIGHT // 2)) for n in range(5)]
    heaviest = asyncio.ensure_future(writer.run(insert("heaviest"), 9 * MOST_WEIGHT))
    light = [asyncio.ensure_future(writer.run(insert(f"light{n}"))) for n in range(9)]
    await held.release()
    await asyncio.gather(*heavy, heaviest, *light)
    assert database.items() == [*(f"n{n}" for n in range(5)), "heaviest", *(f"light{n}" for n in range(9))]
    assert database.commits == 1 + 3 + 1 + 1


async def test_a_function_gets_the_connection_and_its_result_comes_back(
    writer: SqliteWriter, database: Database
) -> None:
    assert await writer.run(insert("a")) == "a"
    assert database.items() == ["a"]


async def test_what_waits_for_the_same_commit_shares_it(writer: SqliteWriter, database: Database) -> None:
    names = [f"item {number}" for number in range(100)]
    assert await as_one_group(writer, *map(insert, names)) == names
    assert database.items() == names
    assert database.commits == 2  # That of the job which held the writer, and one for all the others.


async def test_a_group_has_a_largest_size(
    writer: SqliteWriter, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.adapters.sqlite_writer.MOST_IN_A_GROUP", 10)
    names = [f"item {number}" for number in range(25)]
    await as_one_group(writer, *map(insert, names))
    assert (database.items(), database.commits) == (names, 4)


async def test_a_group_wakes_its_event_loop_once(writer: SqliteWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    wake, calls = loop.call_soon_threadsafe, []
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *arguments: (calls.append(arguments), wake(*arguments)))
    held = Held(writer)
    await asyncio.sleep(0)
    assert held._begun.wait(PATIENCE)  # On the loop, whose wake-ups are counted here.
    jobs = [asyncio.ensure_future(writer.run(insert(str(number)))) for number in range(50)]
    await asyncio.sleep(0)
    await held.release()
    await asyncio.gather(*jobs)
    assert len(calls) == 2


@pytest.mark.parametrize("error", [ValueError("no"), NotFound("no"), sqlite3.IntegrityError("no")])
async def test_a_function_that_fails_is_undone_alone_and_its_error_comes_back(
    writer: SqliteWriter, database: Database, error: Exception
) -> None:
    results = await as_one_group(writer, insert("a"), insert_and_raise("b", error), insert("c"))
    assert results == ["a", error, "c"]
    assert database.items() == ["a", "c"]
    assert len(database.connections) == 1


async def test_a_group_in_which_nothing_fails_runs_once_and_one_with_a_failure_runs_again_one_by_one(
    writer: SqliteWriter, database: Database
) -> None:
    ran: list[str] = []

    def telling(name: str, error: Exception | None = None) -> Callable[[Transaction], str]:
        def run(transaction: Transaction) -> str:
            ran.append(name)
            transaction.on_commit.append(lambda: ran.append(f"{name} committed"))
            return (insert(name) if error is None else insert_and_raise(name, error))(transaction)

        return run

    assert await as_one_group(writer, telling("a"), telling("b"), telling("c")) == ["a", "b", "c"]
    assert ran == ["a", "b", "c", "a committed", "b committed", "c committed"]
    assert database.statements.count("SAVEPOINT job") == 2  # That of the function before the group, and its own.
    ran.clear()
    error = ValueError("no")
    assert await as_one_group(writer, telling("d"), telling("e", error), telling("f")) == ["d", error, "f"]
    assert ran == ["d", "e", "d", "e", "f", "d committed", "f committed"]
    assert database.items() == ["a", "b", "c", "d", "f"]


async def test_a_broken_constraint_is_the_functions_own_error(writer: SqliteWriter, database: Database) -> None:
    first, second, third = await as_one_group(writer, insert("a"), insert("a"), insert("b"))
    assert (first, type(second), third) == ("a", sqlite3.IntegrityError, "b")
    assert database.items() == ["a", "b"]


async def test_what_is_left_for_later_is_done_in_order_after_the_last_and_not_for_one_that_failed(
    writer: SqliteWriter, database: Database
) -> None:
    error = ValueError("no")
    results = await as_one_group(
        writer, insert_later(2, "third"), insert_later(0, "never", error), insert_later(1, "second"), insert("first")
    )
    assert results == ["third", error, "second", "first"]
    assert database.items() == ["first", "second", "third"]
    assert database.commits == 2


async def test_what_is_left_for_later_is_done_sooner_when_it_becomes_too_much(
    writer: SqliteWriter, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.adapters.sqlite_writer.MOST_FOR_LATER", 2)
    error = ValueError("no")
    left = [insert_later(order, name) for order, name in ((3, "c"), (2, "b"), (1, "a"))]
    results = await as_one_group(
        writer, *left, insert_later(0, "never", error), insert_later(0, "d"), lambda transaction: len(transaction.later)
    )
    assert results == ["c", "b", "a", error, "d", 1]
    assert database.items() == ["a", "b", "c", "d"]
    assert database.commits == 2


async def test_when_what_is_left_for_later_fails_nothing_of_the_group_has_happened(
    writer: SqliteWriter, database: Database
) -> None:
    results = await as_one_group(writer, insert("a"), insert_later(1, "a"))
    assert [type(result) for result in results] == [sqlite3.IntegrityError] * 2
    assert database.items() == []
    assert await writer.run(insert("b")) == "b"
    assert database.items() == ["b"]


@pytest.mark.parametrize("error", [StopIteration(), SystemExit(), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_what_would_mean_something_else_on_the_loop_comes_back_as_a_failure(
    writer: SqliteWriter, database: Database, error: BaseException
) -> None:
    with pytest.raises(RuntimeError, match=f"the function raised {type(error).__name__}") as failed:
        await writer.run(insert_and_raise("a", error))
    assert failed.value.__cause__ is error
    assert await writer.run(insert("b")) == "b"
    assert database.items() == ["b"]


async def test_a_full_disk_fails_the_whole_group_and_nothing_is_half_done(
    writer: SqliteWriter, database: Database
) -> None:
    await writer.run(insert("before"))
    (pages,) = database.connections[0].execute("PRAGMA page_count").fetchone()
    database.connections[0].execute(f"PRAGMA max_page_count = {pages}")
    small, large = await as_one_group(writer, insert("small"), insert("x" * 1_000_000))
    for error in (small, large):
        assert (type(error), str(error.__cause__)) == (StorageFull, "database or disk is full")
    assert database.items() == ["before"]
    assert await writer.run(insert("after")) == "after"
    assert database.items() == ["before", "after"]


class FailsToCommit(sqlite3.Connection):
    """Does what a disk does that fills up while the last pages are written."""

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql == "COMMIT":
            super().execute("PRAGMA query_only = ON")
            super().execute("CREATE TABLE never (a)")
        return super().execute(sql, *arguments)


async def test_when_the_commit_fails_nobody_is_told_of_success_and_nothing_has_happened(database: Database) -> None:
    kinds: list[type[sqlite3.Connection]] = [FailsToCommit, sqlite3.Connection]
    opened = []

    def connect() -> sqlite3.Connection:
        kind = kinds[min(len(opened), 1)]
        opened.append(kind)
        return sqlite3.connect(database.path, isolation_level=None, check_same_thread=False, factory=kind)

    writer = SqliteWriter(connect)
    results = await asyncio.gather(
        writer.run(insert("a")),
        writer.run(insert_and_raise("b", ValueError("its own"))),
        writer.run(insert("c")),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [StorageUnavailable, ValueError, StorageUnavailable]
    assert database.items() == []
    assert await writer.run(insert("d")) == "d"
    assert opened == [FailsToCommit, sqlite3.Connection]
    await writer.close()


class CommitsWithAnError(sqlite3.Connection):
    """Does what a disk does that reports an error after the last page was written, or before."""

    is_stored = True

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        done = super().execute(sql if self.is_stored or sql != "COMMIT" else "ROLLBACK", *arguments)
        if sql == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
            raise error
        return done


class LosesCommits(CommitsWithAnError):
    is_stored = False


@pytest.mark.parametrize("kind", [CommitsWithAnError, LosesCommits])
async def test_after_an_io_error_of_the_commit_it_is_unknown_what_is_stored(
    database: Database, kind: type[CommitsWithAnError]
) -> None:
    kinds: list[type[sqlite3.Connection]] = [kind, sqlite3.Connection]

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(database.path, isolation_level=None, check_same_thread=False, factory=kinds.pop(0))

    writer = SqliteWriter(connect)
    results = await asyncio.gather(
        writer.run(insert("a")), writer.run(insert_and_raise("b", ValueError("its own"))), return_exceptions=True
    )
    assert [type(result) for result in results] == [StorageUncertain, ValueError]
    assert database.items() == (["a"] if kind.is_stored else [])
    assert await writer.run(insert("d")) == "d"  # On another connection; nothing was tried again.
    assert database.items() == (["a", "d"] if kind.is_stored else ["d"])
    await writer.close()


async def test_a_transaction_that_sqlite_gives_up_takes_the_whole_group_with_it(
    writer: SqliteWriter, database: Database
) -> None:
    def give_up(transaction: Transaction) -> None:
        transaction.execute("ROLLBACK")
        raise sqlite3.OperationalError("disk I/O error")

    results = await as_one_group(writer, insert("a"), give_up, insert("b"))
    assert [type(result) for result in results] == [StorageFailed] * 3
    assert database.items() == []
    assert await writer.run(insert("c")) == "c"


async def test_after_a_failure_of_the_database_in_one_function_the_connection_is_made_anew(
    writer: SqliteWriter, database: Database
) -> None:
    broken = insert_and_raise("b", sqlite3.OperationalError("disk I/O error"))
    first, second, third = await as_one_group(writer, insert("a"), broken, insert("c"))
    assert (first, type(second), third) == ("a", StorageFailed, "c")
    assert len(database.connections) == 1
    with pytest.raises(OverQuota):
        await writer.run(insert_and_raise("d", OverQuota(1, 2)))
    assert await writer.run(insert("e")) == "e"
    assert (len(database.connections), database.items()) == (2, ["a", "c", "e"])


async def test_a_database_that_cannot_be_opened_is_tried_again_the_next_time(
    writer: SqliteWriter, database: Database
) -> None:
    def refuse() -> None:
        raise PermissionError(13, "Permission denied", "/secret/place")

    database.before_connecting = refuse
    with pytest.raises(StorageUnavailable) as failed:
        await writer.run(insert("a"))
    assert isinstance(failed.value.__cause__, PermissionError)
    database.before_connecting = lambda: None
    assert await writer.run(insert("b")) == "b"
    assert database.items() == ["b"]


HOLDS_THE_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("INSERT INTO item VALUES ('theirs')")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
print("done", flush=True)
"""


def locking(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLDS_THE_LOCK, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
async def test_another_process_is_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    database = Database(tmp_path / "test.db", busy_seconds=0.05)
    impatient = SqliteWriter(database.connect)
    with locking(database.path) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(StorageBusy):
            await impatient.run(insert("impatient"))
        database.busy_seconds = 30
        patient = SqliteWriter(database.connect)
        write = asyncio.ensure_future(patient.run(insert("patient")))
        other.stdin.write("\n")
        other.stdin.flush()
        assert await write == "patient"
    assert database.items() == ["theirs", "patient"]
    await impatient.close()
    await patient.close()


async def test_too_many_waiting_writes_are_refused_at_once(database: Database) -> None:
    writer = SqliteWriter(database.connect, most_waiting=3)
    held = Held(writer)
    await held.begun()
    waiting = [asyncio.ensure_future(writer.run(insert(name))) for name in "abc"]
    await asyncio.sleep(0)
    with pytest.raises(TooManyWrites) as refused:
        await writer.run(insert("d"))
    assert (refused.value.limit, refused.value.actual) == (3, 4)
    await held.release()
    assert await asyncio.gather(*waiting) == ["a", "b", "c"]
    await writer.close()
    assert database.items() == ["a", "b", "c"]


async def test_closing_finishes_what_is_queued_and_takes_no_more(writer: SqliteWriter, database: Database) -> None:
    held = Held(writer)
    await held.begun()
    waiting = asyncio.ensure_future(writer.run(insert("a")))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(writer.close())
    await asyncio.sleep(0)
    with pytest.raises(StorageClosed):
        await writer.run(insert("b"))
    await held.release()
    await closing
    assert await waiting == "a"
    assert database.items() == ["a"]
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        database.connections[0].execute("SELECT 1")
    assert not [thread for thread in threading.enumerate() if thread.name == "dragoman-writer" and not thread.daemon]


async def test_a_writer_that_was_never_used_opens_nothing(database: Database) -> None:
    writer = SqliteWriter(database.connect)
    await writer.close()
    assert database.connections == []


async def test_who_stops_waiting_does_not_stop_the_write(writer: SqliteWriter, database: Database) -> None:
    held = Held(writer)
    await held.begun()
    write = asyncio.ensure_future(writer.run(insert("a")))
    await asyncio.sleep(0)
    write.cancel()
    await held.release()
    assert await writer.run(insert("b")) == "b"
    assert database.items() == ["a", "b"]


def test_writes_come_from_any_thread_and_a_closed_loop_harms_nobody(database: Database) -> None:
    writer = SqliteWriter(database.connect)

    def write_many(prefix: str) -> None:
        async def run() -> None:
            await asyncio.gather(*(writer.run(insert(f"{prefix}{number}")) for number in range(50)))

        asyncio.run(run())

    async def leave_in_a_hurry() -> None:
        job = asyncio.ensure_future(writer.run(insert("left behind")))
        await asyncio.sleep(0)
        job.cancel()

    threads = [threading.Thread(target=write_many, args=(prefix,)) for prefix in "abcd"]
    for thread in threads:
        thread.start()
    asyncio.run(leave_in_a_hurry())
    for thread in threads:
        thread.join()
    asyncio.run(writer.close())
    assert sorted(database.items()) == sorted(
        ["left behind", *(f"{prefix}{number}" for prefix in "abcd" for number in range(50))]
    )


class Tidying:
    """A `tidy` with so many steps, the third of which, or the last, can be waited for."""

    def __init__(self, steps: int, error: Exception | None = None) -> None:
        self.steps = 0
        self._begun = threading.Event()
        self._most = steps
        self._error = error

    def __call__(self, connection: sqlite3.Connection) -> bool:
        assert not connection.in_transaction
        self.steps += 1
        if self.steps == min(self._most, 3):
            self._begun.set()
        if self._error is not None:
            raise self._error
        return self.steps < self._most

    async def wait(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, PATIENCE)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.adapters.sqlite_writer.QUIET_SECONDS", 0.001)
    monkeypatch.setattr("dragoman.adapters.sqlite_writer.WRITES_BEFORE_TIDYING", 2)


@pytest.mark.usefixtures("at_once")
async def test_after_some_writes_the_database_is_tidied_up_step_by_step(database: Database) -> None:
    tidying = Tidying(3)
    writer = SqliteWriter(database.connect, tidy=tidying)
    await writer.run(insert("a"))
    await asyncio.sleep(0.02)
    assert tidying.steps == 0  # One write is not worth it.
    await writer.run(insert("b"))
    await tidying.wait()
    await writer.run(insert("c"))
    await writer.close()
    assert tidying.steps == 3


@pytest.mark.usefixtures("at_once")
async def test_a_write_goes_before_the_next_step_of_tidying(database: Database) -> None:
    tidying = Tidying(10**9)
    writer = SqliteWriter(database.connect, tidy=tidying)
    await asyncio.gather(*(writer.run(insert(name)) for name in "abc"))
    await tidying.wait()
    assert await writer.run(insert("d")) == "d"
    await writer.close()  # It does not end by itself.
    assert database.items() == ["a", "b", "c", "d"]


@pytest.mark.usefixtures("at_once")
async def test_tidying_that_fails_harms_nobody(database: Database) -> None:
    tidying = Tidying(1, sqlite3.OperationalError("disk I/O error"))
    writer = SqliteWriter(database.connect, tidy=tidying)
    await asyncio.gather(*(writer.run(insert(name)) for name in "ab"))
    await tidying.wait()
    assert await writer.run(insert("c")) == "c"
    await writer.close()
    assert database.items() == ["a", "b", "c"]
    assert len(database.connections) == 2


class LockingTidying(Tidying):
    """Has the right to write for most of the time, as tidying has where the disk is slow."""

    def __call__(self, connection: sqlite3.Connection) -> bool:
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(0.01)
        connection.execute("COMMIT")
        return super().__call__(connection)


@pytest.mark.usefixtures("at_once")
async def test_another_process_comes_to_write_between_the_steps_of_tidying(database: Database) -> None:
    tidying = LockingTidying(10**9)
    writer = SqliteWriter(database.connect, tidy=tidying)
    await asyncio.gather(*(writer.run(insert(name)) for name in "ab"))
    await tidying.wait()
    other = SqliteWriter(database.connect)  # To SQLite's locks, a connection is as good as a process.
    for name in "cde":
        assert await other.run(insert(name)) == name
    await other.close()
    await writer.close()
    assert database.items() == ["a", "b", "c", "d", "e"]
