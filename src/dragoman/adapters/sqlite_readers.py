"""The threads that read from a database, each through a connection of its own.

Functions that read for a tenant run in its share of the threads: see `Places`. A job that has to wait for its turn
waits here, and is looked at again whenever a thread has finished another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.adapters.sqlite_errors import storage_error
from dragoman.adapters.sqlite_jobs import Farewell, Job
from dragoman.calls.places import Holder, Places, Turns
from dragoman.errors import StorageClosed

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

MOST_READERS = 5


class SqliteReaders:
    """Runs functions that only read. Threads start, and connect, when there is more to read than they can take."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        *,
        most: int = MOST_READERS,
        saw: Callable[[BaseException], None] = lambda error: None,
        close: Callable[[sqlite3.Connection], None] = lambda connection: connection.close(),
    ) -> None:
        """`saw` is told of every error. `close` closes a connection."""
        self._connect = connect
        self._most = most
        self._saw = saw
        self._close = close
        self._lock = threading.Lock()
        self._jobs: Turns[Job[sqlite3.Connection, Any]] = Turns()
        self._places = Places(most)
        self._woken: SimpleQueue[Farewell | None] = SimpleQueue()
        """Wakes sleeping threads: with None to look for a job, or with the end."""
        self._sleeping = 0
        """Threads that sleep, and that nothing was put for yet."""
        self._count = 0
        self._is_closed = False

    async def run(self, function: Callable[[sqlite3.Connection], T], holder: Holder | None = None) -> T:
        """What `function` returns; all that it reads is as of one moment. It takes a thread of the holder's share."""
        job = Job(function)
        with self._lock:
            if self._is_closed:
                raise StorageClosed("the storage is closed")
            self._jobs.add(job, holder)
            if self._sleeping:
                self._wake_one()
            elif self._count < self._most:  # Or else one that is busy takes it when it has finished.
                name = f"dragoman-reader-{self._count + 1}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._count += 1
        return await job.awaited

    async def close(self) -> None:
        """Finish what is queued, and take no more."""
        with self._lock:
            farewells = [] if self._is_closed else [Farewell() for _ in range(self._count)]
            self._is_closed = True
            ends = [farewell.awaited for farewell in farewells]  # Now: a job that is settled has it no more.
            for farewell in farewells:
                self._woken.put(farewell)
        for end in ends:
            await end

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        farewell: Farewell | None = None
        while farewell is None:
            found = self._next()
            while found is not None:
                job, holder = found
                connection = self._do(job, connection)
                found = self._next(holder, has_finished=True)
                Job.deliver((job,))
                del job  # While it waits for the next, a thread must not keep what the last one read.
            farewell = self._woken.get()
        if connection is not None:
            self._close(connection)
        Job.deliver((farewell,))

    def _next(
        self, holder: Holder | None = None, *, has_finished: bool = False
    ) -> tuple[Job[sqlite3.Connection, Any], Holder | None] | None:
        """The next job, for a thread that `has_finished` one of a holder; None if it has to sleep."""
        with self._lock:
            if has_finished:
                self._places.let_go(holder)
            found = self._jobs.take(self._places.has_room)
            if found is None:
                self._sleeping += 1
                return None
            self._places.hold(found[1])
            if self._jobs and self._sleeping:
                self._wake_one()  # There may be room for another holder.
            return found

    def _wake_one(self) -> None:
        self._sleeping -= 1
        self._woken.put(None)

    def _do(
        self, job: Job[sqlite3.Connection, Any], connection: sqlite3.Connection | None
    ) -> sqlite3.Connection | None:
        """Do a job; the connection for the next one, if it can be used."""
        try:
            if job.awaited.cancelled():
                return connection  # Nobody waits any longer, and others do.
            if connection is None:
                connection = self._connect()
            _read(connection, job)
        except BaseException as error:  # Whatever it was, whoever waits must hear of it, and the thread goes on.
            job.error = storage_error(error)
            self._saw(error)
        if connection is not None and job.error is not None:
            self._close(connection)  # Ends its transaction, whatever state that is in.
            return None
        return connection


def _read(connection: sqlite3.Connection, job: Job[sqlite3.Connection, Any]) -> None:
    connection.execute("BEGIN")
    job.run(connection)
    if job.error is not None:
        raise job.error
    connection.execute("COMMIT")
