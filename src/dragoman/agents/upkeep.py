"""The loops that go on while a server with agents runs: following the ledger, holding agents, purging."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dragoman.agents.awaited import stored_outcome
from dragoman.agents.deliveries import Deliveries
from dragoman.agents.pulse import LoopPulse, on_running_loop
from dragoman.changes import Change, LedgerChanged
from dragoman.clock import sleep
from dragoman.errors import ErrorCode, StorageError
from dragoman.storage.port import PurgeClock
from dragoman.telemetry.log import exception_facts

_HOLD_SECONDS = 0.5
_PURGE_SECONDS = 30.0
_PURGED_AT_ONCE = 500


class Upkeep:
    """Made before the event loop runs, and started on it."""

    def __init__(self, deliveries: Deliveries, purge_clock: PurgeClock) -> None:
        self._deliveries = deliveries
        self._purge_clock = purge_clock
        self._changed = asyncio.Event()
        self._after = 0
        self._awaited = frozenset[int]()
        """The numbers of messages that were awaited half a second ago."""

    def start(self) -> None:
        """Keep the lease of this process alive, and notice what others change."""
        host = self._deliveries
        # A loop that a handler blocks is given as long as a handler may take.
        pulse = LoopPulse(host.clock, host.timeout_ms / 1000)
        changed, lost = on_running_loop(self._changed.set), on_running_loop(host.unsettled.set)
        host.ledger.watch(changed, lost, host.config.lease_ms / 1000, pulse.is_alive)

    def on_change(self, change: Change) -> None:
        """Look at the ledger at once if another process of the server says so."""
        if isinstance(change, LedgerChanged):
            self._changed.set()

    async def follow(self) -> None:
        """Take up what other processes put into the ledger: messages for agents here, and ends of awaited requests."""
        host = self._deliveries
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                news, self._after = await host.ledger.news(self._after)
                host.deliver(news)
                # Of those here, a worker tells the end.
                await self._look_for_ends(host.awaited.except_of(host.workers))
            except StorageError as error:
                host.logger.warn("the ledger cannot be read", exception_facts(error, ErrorCode.INTERNAL))
                await sleep(host.clock, 1.0)
                self._changed.set()

    async def _look_for_ends(self, numbers: Sequence[int]) -> None:
        host = self._deliveries
        for entry in await host.ledger.get(numbers) if numbers else ():
            if not entry.is_open:
                host.awaited.tell(entry.number, await stored_outcome(host.ledger, entry))

    async def keep_holding(self) -> None:
        """Take over agents whose process has ended, and see to what could not be done before."""
        host = self._deliveries
        while True:
            await host.unsettled.wait()
            host.unsettled.clear()
            for worker in tuple(host.workers.values()):
                worker.start_next()  # If the ledger could not be read, there may be more.
            try:
                for agent in tuple(host.agents.values()):
                    await host.hold(agent)
                # What is awaited of an agent that is here by now may have ended elsewhere.
                before, self._awaited = self._awaited, frozenset(host.awaited.numbers)
                await self._look_for_ends(sorted(before & self._awaited))
            except StorageError as error:
                host.logger.warn("agents cannot be held", exception_facts(error, ErrorCode.INTERNAL))
                host.unsettled.set()
            if self._awaited:
                host.unsettled.set()
            await sleep(host.clock, _HOLD_SECONDS)

    async def keep_purging(self) -> None:
        """Delete what has ended and expired, a little at a time."""
        host = self._deliveries
        while True:
            await sleep(host.clock, _PURGE_SECONDS)
            try:
                until = await self._purge_clock.now() - host.config.retry_seconds
                while await host.admin.purge(until, _PURGED_AT_ONCE):
                    pass
            except StorageError as error:
                host.logger.warn("the ledger cannot be purged", exception_facts(error, ErrorCode.INTERNAL))
