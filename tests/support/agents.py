"""Servers with agents, on a clock that tests move, and a ledger that tests can make fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dragoman.agents.coordinator import Coordinator
from dragoman.agents.ledger import Ledger, LedgerAdmin, LedgerEntry, NewEntry, Query, Settlement
from dragoman.errors import StorageError
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock, TestServer, open_server
from tests.support.waiting import until


class AgentServer:
    """A server with agents, and what tests need of it."""

    def __init__(self, server: TestServer, coordinator: Coordinator, clock: ManualClock) -> None:
        self.server = server
        self.coordinator = coordinator
        self.clock = clock
        self.deliveries = coordinator.deliveries

    async def page(self, **query: Any) -> list[LedgerEntry]:
        return await self.deliveries.admin.page(Query(**query))

    async def settled(self) -> list[LedgerEntry]:
        """Every message, once none is open any more."""
        while any(each.is_open for each in await self.page(limit=10_000)):  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.002)
        return await self.page(limit=10_000)

    async def advance(self, seconds: float, step: float = 0.05) -> None:
        """Let time pass in steps, and what falls due have its turn after each."""
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            await self.rest()

    async def rest(self) -> None:
        """Let everything run that can run now, and the ledger do what it is asked for."""
        for _ in range(2):
            await quiet()
            await self.deliveries.ledger.release(())  # Behind all writes so far.
        await quiet()


async def quiet() -> None:
    """Let everything run that can run now."""
    for _ in range(50):
        await asyncio.sleep(0)


@asynccontextmanager
async def agents_served(
    *agents: Any, config: Mapping[str, Any] | None = None, folder: Path | None = None, **options: Any
) -> AsyncIterator[AgentServer]:
    """A server with agents. With `folder`, their messages are kept there; otherwise in memory."""
    coordinator = options.pop("agents", None) or Coordinator()
    clock = options.pop("clock", None) or ManualClock()
    settings = {"storage": {"data_dir": str(folder)}} if folder is not None else {}
    settings.update(config or {})
    async with open_server(agents, settings, agents=coordinator, clock=clock, **options) as server:
        yield AgentServer(server, coordinator, clock)


async def all_held(served: AgentServer, *agents: str) -> None:
    await until(lambda: set(agents) <= set(served.deliveries.workers))


class FailingLedger:
    """A ledger that raises what it is told to, in place of its next writes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.settle_errors: list[StorageError] = []
        self.begin_errors: list[StorageError] = []
        self.accept_errors: list[StorageError] = []
        self.waiting_errors: list[StorageError] = []
        self.tries = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def accept(self, entry: NewEntry) -> Awaitable[LedgerEntry]:
        if self.accept_errors:
            return raising(self.accept_errors.pop(0))
        return self._ledger.accept(entry)

    def settle(self, settlement: Settlement) -> Awaitable[list[LedgerEntry]]:
        self.tries += 1
        if self.settle_errors:
            return raising(self.settle_errors.pop(0))
        return self._ledger.settle(settlement)

    async def begin(self, number: int, agent: str, epoch: int) -> None:
        if self.begin_errors:
            raise self.begin_errors.pop(0)
        await self._ledger.begin(number, agent, epoch)

    async def waiting(self, agent: str, after: int, limit: int) -> list[LedgerEntry]:
        if self.waiting_errors:
            raise self.waiting_errors.pop(0)
        return await self._ledger.waiting(agent, after, limit)


async def _raise(error: StorageError) -> Any:
    raise error


def raising(error: StorageError) -> Awaitable[Any]:
    return _raise(error)


def ledger_of(storage: Storage) -> tuple[Ledger, LedgerAdmin]:
    return storage.port(Ledger), storage.port(LedgerAdmin)


class Gate:
    """Handlers wait at it until the test opens it, and the test until one has come."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self) -> None:
        self.arrived.set()
        await self.opened.wait()


Handler = Callable[..., Awaitable[Any]]
