"""What an agent did is stored in order, however often the storage fails, for as long as the agent is held."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dragoman.agents.ledger import Hold
from dragoman.agents.settling import Settling
from dragoman.errors import LeaseLost, StorageBusy, StorageClosed, StorageError, StorageLost
from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.testing import ManualClock
from tests.support.agents import quiet
from tests.support.waiting import PATIENCE

BUSY, LOST = StorageBusy("busy"), LeaseLost("a")
SETTLEMENT: Any = None  # The storage here does not look at it.
ENTRY: Any = type("Entry", (), {"number": 1})


@dataclass
class Host:
    """Its ledger comes to the next of these outcomes each time: an error, or an event that it waits for."""

    outcomes: list[StorageError | asyncio.Event]
    is_stopping: bool = False
    clock: ManualClock = field(default_factory=ManualClock)
    entries: list[Entry] = field(default_factory=list)

    @property
    def ledger(self) -> Any:
        return self

    @property
    def logger(self) -> StructuredLogger:
        return StructuredLogger(self.entries.append, self.clock)

    def settle(self, settlement: Any) -> Awaitable[list[Any]]:
        return self._come_to(self.outcomes.pop(0) if self.outcomes else None)

    async def begin(self, number: int, agent: str, epoch: int) -> None:
        await self.settle(None)

    async def _come_to(self, outcome: StorageError | asyncio.Event | None) -> list[Any]:
        if isinstance(outcome, StorageError):
            raise outcome
        if outcome is not None:
            await outcome.wait()
        return []


def settling(*outcomes: StorageError | asyncio.Event, is_stopping: bool = False) -> tuple[Settling, Host]:
    host = Host(list(outcomes), is_stopping)
    return Settling(host, Hold("a", 1, 0, {})), host


async def test_a_beginning_ends_when_the_agent_has_another_holder() -> None:
    made, host = settling(LOST)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(LeaseLost):
            await made.begin(ENTRY)
    assert host.entries == []


async def test_a_server_that_stops_does_not_wait_for_a_storage_that_fails() -> None:
    made, _ = settling(BUSY, is_stopping=True)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(LeaseLost):
            await made.settle(SETTLEMENT)
        with pytest.raises(LeaseLost):
            await made.wait()


@pytest.mark.parametrize("error", [StorageClosed("closed"), StorageLost("gone")])
async def test_what_can_be_stored_only_after_a_restart_is_given_up(error: StorageError) -> None:
    made, _ = settling(error, error)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(LeaseLost):
            await made.begin(ENTRY)
        with pytest.raises(LeaseLost):
            await made.settle(SETTLEMENT)


async def test_a_settlement_that_failed_because_the_one_before_had_is_stored_after_it() -> None:
    made, host = settling(BUSY, LOST)
    both = asyncio.gather(made.settle(SETTLEMENT), made.settle(SETTLEMENT))
    async with asyncio.timeout(PATIENCE):
        while not both.done():
            host.clock.advance(1)
            await quiet()
    assert both.result() == [[], []]


@pytest.mark.parametrize("who", ["one that waits", "one that settles next"])
async def test_whoever_does_not_wait_any_longer_leaves_the_settlement_alone(who: str) -> None:
    stored = asyncio.Event()
    made, _ = settling(stored, BUSY)
    first = asyncio.ensure_future(made.settle(SETTLEMENT))
    other = asyncio.ensure_future(made.wait() if who == "one that waits" else made.settle(SETTLEMENT))
    await quiet()
    other.cancel()
    await asyncio.wait([other])
    stored.set()
    async with asyncio.timeout(PATIENCE):
        assert await first == []
