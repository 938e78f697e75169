"""The loops of a server whose calls are kept: following the store, taking over, purging."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from dragoman.agents.ledger import EntryStatus
from dragoman.changes import Change, LedgerChanged
from dragoman.clock import sleep
from dragoman.errors import ErrorCode, StorageError
from dragoman.storage.port import PurgeClock
from dragoman.tasks.feed import TaskFeed
from dragoman.tasks.port import RunQuery
from dragoman.tasks.running import WAITING, TaskRuns
from dragoman.tasks.store import RunStore
from dragoman.telemetry.log import Logger, exception_facts

_SWEEP_SECONDS = 0.5
_PURGE_SECONDS = 30.0
_PURGED_AT_ONCE = 500


class TaskUpkeep:
    """Does nothing until the store has been used."""

    def __init__(
        self,
        store: RunStore,
        tasks: TaskRuns,
        feed: TaskFeed,
        logger: Logger,
        retry_seconds: float,
        open_purge_clock: Callable[[], PurgeClock],
    ) -> None:
        self._store = store
        self._open_purge_clock = open_purge_clock
        self._tasks = tasks
        self._feed = feed
        self._logger = logger
        self._retry_seconds = retry_seconds

    def on_change(self, change: Change) -> None:
        """Look at the store at once if another process of the server says so."""
        if isinstance(change, LedgerChanged):
            self._store.changed()

    async def follow(self) -> None:
        """Take up tasks that wait, and what other processes have stored about those that run here."""
        changes = self._store.changes
        while True:
            await changes
            changes = self._store.changes  # What happens while it looks is looked at, too.
            if not self._store.is_open:
                continue
            try:
                if self._store.is_stale:
                    self._store.is_stale = False
                    await self._look()
            except StorageError as error:
                self._logger.warn("the ledger cannot be read", exception_facts(error, ErrorCode.INTERNAL))
                await sleep(self._store.clock, 1.0)
                self._store.changed()

    async def keep_telling(self) -> None:
        """Tell listeners of changes. Apart from `follow`: there may be many of them, and each is a read."""
        changes = self._store.changes
        while True:
            await changes
            changes = self._store.changes
            await self._feed.look()

    async def keep_sweeping(self) -> None:
        """Give up the runs of processes that have ended, and begin again what may be repeated."""
        store = self._store
        while True:
            await store.unsettled.wait()
            store.unsettled.clear()
            await self.sweep()
            await sleep(store.clock, _SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Once."""
        try:
            given_up = await self._store.sweep()
            if given_up:
                self._logger.warn("runs were taken over from a process that has ended", {"count": given_up})
            await self._look()
            if given_up:
                self._store.tell_others()
        except StorageError as error:
            self._logger.warn("runs cannot be taken over", exception_facts(error, ErrorCode.INTERNAL))
            self._store.unsettled.set()

    async def keep_purging(self) -> None:
        """Delete what has ended and expired, a little at a time."""
        while True:
            await sleep(self._store.clock, _PURGE_SECONDS)
            if not self._store.is_open:
                continue
            try:
                until = await self._open_purge_clock().now() - self._retry_seconds
                while await self._store.admin.purge(until, _PURGED_AT_ONCE):
                    pass
            except StorageError as error:
                self._logger.warn("the ledger cannot be purged", exception_facts(error, ErrorCode.INTERNAL))

    async def _look(self) -> None:
        runs, tasks = self._store.runs, self._tasks
        if tasks.reach > 0:
            tasks.look_at(await runs.page(replace(WAITING, limit=tasks.reach)))
        if tasks.running:
            query = RunQuery(statuses=(EntryStatus.RUNNING,), limit=10_000)
            for run in await runs.page(query):
                tasks.saw(run)
