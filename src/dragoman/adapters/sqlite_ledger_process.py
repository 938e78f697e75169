"""This process among those that share a ledger: its lock file, its lease, and the watch that renews it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from uuid import uuid4

from dragoman.adapters.process_locks import ProcessLocks, boot_clock
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_watch import SqliteWatch, Watcher
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.adapters.wakefulness import Wakefulness

_DEFAULT_LEASE = 10.0


class SqliteProcess:
    """The holder of agents and runs. All ports of one storage are the same process; the last that leaves ends it."""

    def __init__(self, database: SqliteDatabase, *, boot_clock: Callable[[], float] = boot_clock) -> None:
        self._database = database
        self._lease = _DEFAULT_LEASE
        self._boot_clock = boot_clock
        self._wakefulness = Wakefulness(boot_clock)
        self.note_awake = self._wakefulness.note
        self._locks = ProcessLocks(database.path.parent / "locks")
        self._watchers: dict[object, Watcher] = {}
        self._watch: SqliteWatch | None = None
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

    def expiry(self, lease: float) -> float:
        """The time at which a lease of so many seconds must have ended to be expired. See `Wakefulness`."""
        return self._wakefulness.expiry(lease)

    def seems_alive(self, process: str, until: float) -> bool:
        """Whether a process is alive whose lease lasts until then."""
        return until > self.expiry(self._lease) and not self._locks.is_free(process)

    def is_alive(self, process: str, writing: Transaction) -> bool:
        """Whether a process is alive. Removes the rows and the file of one that has ended."""
        if process == self.id:
            return True
        row = writing.execute("SELECT until FROM ledger_process WHERE id = ?", (process,)).fetchone()
        if row is not None and not self._locks.is_free(process):
            return bool(row[0] > self.expiry(self._lease))
        writing.execute("DELETE FROM ledger_process WHERE id = ?", (process,))
        self._locks.remove(process)
        return False

    def watch(self, port: object, watcher: Watcher) -> None:
        """Renew the lease while `watcher.is_alive`, and tell it what changes, until `leave`."""
        assert port not in self._watchers
        self._watchers = {**self._watchers, port: watcher}  # Another thread looks at them.
        if self._watch is None:
            self._lease = watcher.lease_seconds
            self._watch = SqliteWatch(
                self._database.connect,
                lambda: tuple(self._watchers.values()),
                lambda: self.id,
                self.seems_alive,
                self._renew,
                self.note_awake,
                check=self._database.trouble.check,
                saw=self._database.trouble.saw,
                close=self._database.trouble.close,
            )
            self._watch.start()

    def look_often(self) -> Callable[[], None]:
        """Notice within 50 ms what other processes change, until the function that this returns is called."""
        return _nothing if self._watch is None else self._watch.look_often()

    def hurry(self) -> None:
        """Notice within 50 ms what other processes change, for a while."""
        if (watch := self._watch) is not None:
            watch.hurry()

    async def leave(self, port: object, give_back: Callable[[Transaction], None]) -> None:
        """Give back what a port holds, and end this process in the ledger if no other port needs it."""
        self._watchers = {each: watcher for each, watcher in self._watchers.items() if each is not port}
        is_last = not self._watchers
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

    def _renew(self, connection: sqlite3.Connection) -> None:
        if self.id is not None:
            until = self._boot_clock() + self._lease
            connection.execute("UPDATE ledger_process SET until = ? WHERE id = ?", (until, self.id))


def _nothing() -> None:
    """Nobody looks."""
