"""Ledgers and runs on one database, as several processes have them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_ledger import SqliteLedger
from dragoman.adapters.sqlite_ledger_admin import SqliteLedgerAdmin
from dragoman.adapters.sqlite_ledger_process import SqliteProcess
from dragoman.adapters.sqlite_runs import SqliteRuns
from dragoman.agents.migrations import MIGRATIONS
from dragoman.storage.migrations import Migration
from tests.support.run_entries import UNKNOWN

LEASE = 10.0
"""Seconds, unless a process is told otherwise."""


class BootClock:
    """Seconds since the machine started, as the test says."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds

    def run(self, seconds: float, *awake: SqliteProcess) -> None:
        """Let time pass in which these processes are awake, and all others sleep."""
        end = self.seconds + seconds
        while self.seconds < end:
            self.seconds = min(end, self.seconds + LEASE / 16)
            for process in awake:
                process.note_awake()


class Process:
    """A ledger and its runs as one process has them. `end` frees its lock and gives nothing back, as a crash does."""

    def __init__(
        self, folder: Path, clock: BootClock, space: str = "s", migrations: Sequence[Migration] = MIGRATIONS
    ) -> None:
        self.database = SqliteDatabase(folder / FILE_NAME, migrations)
        self.process = SqliteProcess(self.database, boot_clock=clock)
        self.ledger = SqliteLedger(self.database, space, self.process)
        self.runs = SqliteRuns(self.database, space, self.process)
        self.admin = SqliteLedgerAdmin(self.database, space)
        self._folder = folder

    @property
    def name(self) -> str:
        assert self.process.id is not None
        return self.process.id

    def end(self) -> None:
        """As the system does when a process ends."""
        (self._folder / "locks" / f"{self.name}.lock").unlink()

    async def close(self) -> None:
        await self.runs.close(0.0, UNKNOWN)
        await self.ledger.close()
        await self.database.close()


@asynccontextmanager
async def processes(folder: Path, *spaces: str) -> AsyncIterator[tuple[list[Process], BootClock]]:
    """A process for each space. At the end, nothing in the ledger contradicts its rules."""
    clock = BootClock()
    made = [Process(folder, clock, space) for space in spaces]
    try:
        yield made, clock
        for each in made:
            assert await each.admin.verify() == []
    finally:
        for each in made:
            await each.close()
