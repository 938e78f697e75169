"""The threads that read from a database, each through a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.adapters.sqlite_errors import storage_error
from dragoman.adapters.sqlite_jobs import Farewell, Job
from dragoman.errors import StorageClosed

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

MOST_READERS = 4


class SqliteReaders:
    """Runs functions that only read. Threads start, and connect, when there is more to read than they can take."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        *,
        most: int = MOST_READERS,
        saw: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """`saw` is told of every error."""
        self._connect = connect
        self._most = most
        self._saw = saw
        self._jobs: SimpleQueue[Job[sqlite3.Connection, Any]] = SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        self._unfinished = 0
        self._is_closed = False

    async def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """What `function` returns; all that it reads is as of one moment."""
        job = Job(function)
        with self._lock:
            if self._is_closed:
                raise StorageClosed("the storage is closed")
            self._unfinished += 1
            if self._unfinished > self._count and self._count < self._most:
                name = f"dragoman-reader-{self._count + 1}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._count += 1
            self._jobs.put(job)
        return await job.awaited

    async def close(self) -> None:
        """Finish what is queued, and take no more."""
        with self._lock:
            farewells = [] if self._is_closed else [Farewell() for _ in range(self._count)]
            self._is_closed = True
            ends = [farewell.awaited for farewell in farewells]  # Now: a job that is settled has it no more.
            for farewell in farewells:
                self._jobs.put(farewell)
        for end in ends:
            await end

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        is_last = False
        while not is_last:
            job = self._jobs.get()
            is_last = isinstance(job, Farewell)
            try:
                is_wanted = not job.awaited.cancelled()  # Or else nobody waits any longer, and others do.
                if connection is None and is_wanted and not is_last:
                    connection = self._connect()
                if connection is not None and is_wanted:
                    _read(connection, job)
            except BaseException as error:  # Whatever it was, whoever waits must hear of it, and the thread goes on.
                job.error = storage_error(error)
                self._saw(error)
            if connection is not None and (is_last or job.error is not None):
                connection.close()  # Ends its transaction, whatever state that is in.
                connection = None
            with self._lock:
                self._unfinished -= 1
            Job.deliver((job,))
            del job  # While it waits for the next, a thread must not keep what the last one read.


def _read(connection: sqlite3.Connection, job: Job[sqlite3.Connection, Any]) -> None:
    connection.execute("BEGIN")
    job.run(connection)
    if job.error is not None:
        raise job.error
    connection.execute("COMMIT")
