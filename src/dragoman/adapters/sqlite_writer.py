"""The one thread that writes to a database, and commits many writes at once.

A commit waits for the disk, and the wait is the same for one write and for five hundred. So whatever has been asked for
while the last commit was under way goes into the next one, up to a weight: other processes want to write, too.

1. Functions run inside their group's transaction, under one savepoint. If any of them fails, all are undone and run
   again, each under a savepoint of its own, so that only what fails is undone: a function may run twice, and must leave
   nothing but rows, `later` and `on_commit`. Work that is better done for many of them together comes after them, but
   not for those that failed. Work of one kind that was asked for in a row may be done by fewer statements.
2. Nobody is told of success before the commit has succeeded.
3. When the transaction itself fails (disk full, file unreadable, locked by another process for too long) nothing of the
   group has happened, and everybody in it is told so. SQLite gives a transaction up when the disk is full. When the
   COMMIT fails with an I/O error the group may be there after a restart: everybody in it gets `StorageUncertain`.
4. After any failure of the database the connection is made anew: what was wrong may be right the next time.
5. When too many wait already, one more is refused at once instead of being queued.
6. When there is nothing to write, the database is tidied up, in steps so small that a write need not wait for long,
   and with pauses in which other processes can write.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.adapters.sqlite_errors import commit_error, storage_error
from dragoman.adapters.sqlite_jobs import Farewell, Job, Together
from dragoman.errors import StorageClosed, StorageFailed, TooManyWrites

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

MOST_WAITING = 10_000
MOST_IN_A_GROUP = 512
MOST_WEIGHT = 2_000
"""Of a group, unless it is one function: about as many rows as others should wait for."""
MOST_FOR_LATER = 2048
WRITES_BEFORE_TIDYING = 16
QUIET_SECONDS = 0.1
PAUSE_SECONDS = 0.01
"""After each step of tidying. Other processes only look now and then whether they can write, and give up in the end."""


class Transaction:
    """What a function that writes gets. It must not begin, commit or undo anything itself."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.execute = connection.execute
        self.later: list[tuple[int, str, tuple[Any, ...]]] = []
        """Statements, with their values, to be executed before the commit, in the order of the numbers before them."""
        self.on_commit: list[Callable[[], None]] = []
        """Functions to call on the writer's thread once everything is committed."""

    def finish(self) -> None:
        for _, statement, values in sorted(self.later, key=itemgetter(0)):
            self.execute(statement, values)
        self.later.clear()


class SqliteWriter:
    """Runs functions that write. Its thread starts, and `connect` is called, when the first of them is there.

    `tidy` does one step, and says whether there are more. `check` raises while nothing may be written; it is called
    before a group, and again before its commit is believed. `saw` is told of every error. `close` closes the
    connection.
    """

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        *,
        tidy: Callable[[sqlite3.Connection], bool] = lambda connection: False,
        check: Callable[[], None] = lambda: None,
        saw: Callable[[BaseException], None] = lambda error: None,
        close: Callable[[sqlite3.Connection], None] = lambda connection: connection.close(),
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self._connect = connect
        self._tidy = tidy
        self._check = check
        self._saw = saw
        self._close = close
        self._most_waiting = most_waiting
        self._jobs: SimpleQueue[Job[Transaction, Any]] = SimpleQueue()
        self._lock = threading.Lock()
        self._is_running = False
        self._is_closed = False
        self._writes_since_tidy = 0
        self._held: Job[Transaction, Any] | None = None
        """A job that was too much for the last group."""
        self._connection: sqlite3.Connection | None = None

    def run(self, function: Callable[[Transaction], T], weight: int = 1) -> Awaitable[T]:
        """Run `function`, and return its result once that is committed. Functions run in the order of these calls.

        The weight is about how many rows it writes, if they are many.
        Can be awaited on any event loop of any thread. If nobody waits any longer the function runs all the same.
        """
        return self._put(Job(function, weight=weight))

    def run_together(self, together: Together, item: Any) -> Awaitable[Any]:
        """As `run`, for an item that may be done at once with those before and behind it."""
        return self._put(Job.one_of(together, item))

    def _put(self, job: Job[Transaction, T]) -> Awaitable[T]:
        with self._lock:
            if self._is_closed:
                raise StorageClosed("the storage is closed")
            waiting = self._jobs.qsize()
            if waiting >= self._most_waiting:
                raise TooManyWrites(self._most_waiting, waiting + 1)
            if not self._is_running:
                threading.Thread(target=self._work, name="dragoman-writer", daemon=True).start()
                self._is_running = True
            self._jobs.put(job)
        return job.awaited

    async def close(self) -> None:
        """Finish what is queued, and take no more."""
        with self._lock:
            is_needed = self._is_running and not self._is_closed
            self._is_closed = True
            if not is_needed:
                return
            farewell = Farewell()
            self._jobs.put(farewell)
        await farewell.awaited

    def _work(self) -> None:
        is_last = False
        while not is_last:
            group = self._group(self._next())
            is_last = isinstance(group[-1], Farewell)
            self._write([job for job in group if not isinstance(job, Farewell)])
            if is_last:
                self._disconnect()
            Job.deliver(group)
            del group  # While it waits for the next, the thread must not keep what the last one wrote.

    def _group(self, first: Job[Transaction, Any]) -> list[Job[Transaction, Any]]:
        """What goes into the next commit: what has been asked for, up to a number and a weight."""
        group, weight = [first], first.weight
        for _ in range(min(self._jobs.qsize(), MOST_IN_A_GROUP - 1)):
            job = self._jobs.get()
            weight += job.weight
            if weight > MOST_WEIGHT:
                self._held = job
                break
            group.append(job)
        return group

    def _next(self) -> Job[Transaction, Any]:
        """The next job; until it comes, the database is tidied up."""
        held, self._held = self._held, None
        if held is not None:
            return held
        quiet_seconds = QUIET_SECONDS
        while self._connection is not None and self._writes_since_tidy >= WRITES_BEFORE_TIDYING:
            try:
                return self._jobs.get(timeout=quiet_seconds)
            except Empty:
                quiet_seconds = PAUSE_SECONDS
            try:
                has_more = self._tidy(self._connection)
            except Exception as error:  # Whoever writes next finds out, if it is still so.
                self._saw(error)
                self._disconnect()
                has_more = False
            if not has_more:
                self._writes_since_tidy = 0
        return self._jobs.get()

    def _write(self, group: list[Job[Transaction, Any]]) -> None:
        if not group:
            return
        self._writes_since_tidy += len(group)
        try:
            connection = self._begin()
            transaction = Transaction(connection)
            for together, jobs in groupby(group, attrgetter("together")):
                _run(together, list(jobs), connection, transaction)
            transaction.finish()
            self._commit(connection)
            for step in transaction.on_commit:
                step()
        except BaseException as error:  # Whatever it was, whoever waits must hear of it, and the thread goes on.
            for job in group:
                job.error = job.error or storage_error(error)
            self._saw(error)
            self._disconnect()
        else:
            for job in group:
                if isinstance(job.error, StorageFailed):
                    self._saw(job.error)
                    self._disconnect()

    def _begin(self) -> sqlite3.Connection:
        self._check()
        if self._connection is None:
            self._connection = self._connect()
        # IMMEDIATE: to read first and ask for the right to write later could find that somebody else has it.
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
            self._check()  # What was stored in files that were moved away meanwhile may come back with them.
        except Exception as error:
            raise commit_error(error) from error

    def _disconnect(self) -> None:
        """Closing undoes what was not committed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._close(connection)


def _run(
    together: Together | None,
    jobs: list[Job[Transaction, Any]],
    connection: sqlite3.Connection,
    transaction: Transaction,
) -> None:
    if len(jobs) > 1 and _run_at_once(together, jobs, connection, transaction):
        return
    for job in jobs:
        _run_alone(job, connection, transaction)
        if len(transaction.later) > MOST_FOR_LATER:  # Each can have thousands of words.
            transaction.finish()


def _run_at_once(
    together: Together | None,
    jobs: list[Job[Transaction, Any]],
    connection: sqlite3.Connection,
    transaction: Transaction,
) -> bool:
    """Whether all of them are done; otherwise none is."""
    connection.execute("SAVEPOINT job")
    count, steps = len(transaction.later), len(transaction.on_commit)
    values: Sequence[Any] | None = None
    try:
        if together is not None:
            values = together.all([job.item for job in jobs], transaction)
        else:
            values = _values(jobs, transaction)
    except BaseException:
        if not connection.in_transaction:
            raise  # SQLite has undone the whole transaction, and the others with it.
    if values is None:  # Which of them fails shows when each runs alone.
        connection.execute("ROLLBACK TO job")
        del transaction.later[count:], transaction.on_commit[steps:]
    else:
        for job, value in zip(jobs, values, strict=True):
            job.done(value)
    connection.execute("RELEASE job")
    return values is not None


def _values(jobs: list[Job[Transaction, Any]], transaction: Transaction) -> list[Any] | None:
    """The functions' values, or None if they leave too much for later: run alone, each can finish that at once."""
    values = []
    for job in jobs:
        values.append(job.function(transaction))
        if len(transaction.later) > MOST_FOR_LATER:
            return None
    return values


def _run_alone(job: Job[Transaction, Any], connection: sqlite3.Connection, transaction: Transaction) -> None:
    connection.execute("SAVEPOINT job")
    count, steps = len(transaction.later), len(transaction.on_commit)
    job.run(transaction)
    if job.error is not None:
        error, job.error = job.error, storage_error(job.error)
        if not connection.in_transaction:
            try:
                raise error  # SQLite has undone the whole transaction, and the others with it.
            finally:
                del error  # It leads to this frame.
        connection.execute("ROLLBACK TO job")
        del transaction.later[count:], transaction.on_commit[steps:]
    connection.execute("RELEASE job")
