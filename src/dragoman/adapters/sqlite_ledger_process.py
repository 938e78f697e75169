"""This process among those that share a ledger: its lock file, its lease, and the thread that looks after both."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from functools import partial
from uuid import uuid4

from dragoman.adapters.process_locks import ProcessLocks, boot_clock
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_writer import Transaction

_WATCH_SECONDS = 0.05
_DEFAULT_LEASE = 10.0


class SqliteProcess:
    """The holder of agents and runs. All ports of one storage are the same process; the last that leaves ends it."""

    def __init__(self, database: SqliteDatabase, *, boot_clock: Callable[[], float] = boot_clock) -> None:
        self._database = database
        self._lease = _DEFAULT_LEASE
        self._boot_clock = boot_clock
        self._locks = ProcessLocks(database.path.parent / "locks")
        self._watches: dict[object, tuple[Callable[[], None], Callable[[], bool]]] = {}
        self._watch: _Watch | None = None
        self._is_known = False
        self.id: str | None = None
        """None until it holds something."""

    def enlist(self, writing: Transaction) -> str:
        """The id of this process, which is alive from now on."""
        if self.id is None:
            process = uuid4().hex
            self._locks.take(process)
            self.id = process
        writing.execute(
            "INSERT INTO ledger_process (id, until) VALUES (?, ?) "
            "ON CONFLICT (id) DO UPDATE SET until = excluded.until",
            (self.id, self._boot_clock() + self._lease),
        )
        # Only once it is committed: a transaction may fail, and the row with it.
        writing.on_commit.append(partial(setattr, self, "_is_known", True))
        return self.id

    def member(self, writing: Transaction) -> str:
        """As `enlist`, without a statement for a process that is in the ledger already."""
        return self.id if self.id is not None and self._is_known else self.enlist(writing)

    def seems_alive(self, process: str, until: float) -> bool:
        """Whether a process is alive whose lease lasts until then."""
        return bool(self._boot_clock() < until) and not self._locks.is_free(process)

    def is_alive(self, process: str, writing: Transaction) -> bool:
        """Whether a process is alive. Removes the rows and the file of one that has ended."""
        if process == self.id:
            return True
        row = writing.execute("SELECT until FROM ledger_process WHERE id = ?", (process,)).fetchone()
        if row is not None and not self._locks.is_free(process):
            return bool(self._boot_clock() < row[0])
        writing.execute("DELETE FROM ledger_process WHERE id = ?", (process,))
        self._locks.remove(process)
        return False

    def watch(
        self, watcher: object, changed: Callable[[], None], lease_seconds: float, is_alive: Callable[[], bool]
    ) -> None:
        """Renew the lease while `is_alive`, and call `changed` when the database has changed, until `leave`."""
        assert watcher not in self._watches
        self._watches = {**self._watches, watcher: (changed, is_alive)}  # Another thread looks at them.
        if self._watch is None:
            self._lease = lease_seconds
            self._watch = _Watch(self._database.connect, self._changed, self._renew, lease_seconds / 3)

    async def leave(self, watcher: object, give_back: Callable[[Transaction], None]) -> None:
        """Give back what a port holds, and end this process in the ledger if no other port needs it."""
        self._watches = {port: each for port, each in self._watches.items() if port is not watcher}
        is_last = not self._watches
        if is_last and self._watch is not None:
            self._watch.stop()
            self._watch = None
        if self.id is None:
            return
        try:
            await self._database.write(partial(self._leave, give_back, is_last))
        finally:
            if is_last:
                self._locks.give_back(self.id)
                self.id, self._is_known = None, False

    def _leave(self, give_back: Callable[[Transaction], None], is_last: bool, writing: Transaction) -> None:
        give_back(writing)
        if is_last:
            writing.execute("DELETE FROM ledger_process WHERE id = ?", (self.id,))

    def _changed(self) -> None:
        for changed, _ in self._watches.values():
            changed()

    def _renew(self, connection: sqlite3.Connection) -> None:
        if self.id is not None and all(is_alive() for _, is_alive in self._watches.values()):
            until = self._boot_clock() + self._lease
            connection.execute("UPDATE ledger_process SET until = ? WHERE id = ?", (until, self.id))


class _Watch:
    """A thread that renews the lease of this process, and notices what other connections change."""

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        changed: Callable[[], None],
        renew: Callable[[sqlite3.Connection], None],
        every: float,
    ) -> None:
        self._connect = connect
        self._changed = changed
        self._renew = renew
        self._every = every
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dragoman-ledger", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        seen, renewed = 0, 0.0
        while not self._end.wait(_WATCH_SECONDS):
            try:
                if connection is None:
                    connection = self._connect()
                now = boot_clock()
                if now - renewed >= self._every:
                    self._renew(connection)
                    renewed = now
                (version,) = connection.execute("PRAGMA data_version").fetchone()
                if version != seen:
                    seen = version
                    self._changed()
            except Exception:  # The disk may be full, or the file locked: what can be renewed later is.
                if connection is not None:
                    connection.close()
                connection = None
        if connection is not None:
            connection.close()
