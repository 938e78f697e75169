"""Rounds of servers with agents, which are killed while they are asked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import msgspec

from chaos.asks import TARGETS, Ask, AskLoad
from chaos.checks import Found, problems_in
from chaos.points import POINTS
from chaos.rounds import LANES, Round
from chaos.servers import SPACE, Place, Served
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_ledger import SqliteLedger
from dragoman.adapters.sqlite_ledger_admin import SqliteLedgerAdmin
from dragoman.agents.ledger import OPEN, Query
from dragoman.agents.migrations import MIGRATIONS
from dragoman.storage.migrations import migrations_for

_TAKEN_OVER = "an agent was taken over from a process that has ended"
_QUIET_LIMIT = 60.0


class AgentRound(Round):
    """Two servers at a time."""

    points = POINTS
    sizes = (2,)
    _load: AskLoad

    def make_load(self) -> AskLoad:
        return AskLoad(self._live, self._chance)

    async def settle(self, last: Served) -> None:
        await self._ask_again(last)
        await self._wait_until_quiet()

    async def _ask_again(self, server: Served) -> None:
        """Every request once more: it must have the answer that it had."""

        async def again(asks: Sequence[Ask]) -> None:
            for ask in asks:
                if not await self._load.ask_once(ask, lambda: server):
                    self._report.problems.append(f"request {ask.request_id} has no outcome any more")

        asks = self._load.asks
        await asyncio.gather(*(again(asks[lane::LANES]) for lane in range(LANES)))

    async def _wait_until_quiet(self) -> None:
        async with opened_ledger(self._place) as (_, admin):
            deadline = time.monotonic() + _QUIET_LIMIT
            while await admin.page(Query(statuses=OPEN, limit=1)) and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def check(self) -> None:
        report = self._report
        found = await found_in(self._place, self._load.asks)
        handled = [each for each in found.entries if each.kind != "RESPONSE"]
        report.requests += len(self._load.asks)
        report.messages += len(handled)
        report.statuses.update(each.status.value for each in handled)
        report.takeovers += sum(server.logged()[_TAKEN_OVER] for server in self._all)
        report.problems += problems_in(found)


@contextlib.asynccontextmanager
async def opened_database(place: Place) -> AsyncIterator[SqliteDatabase]:
    """The database of the servers at a place, for this process."""
    database = SqliteDatabase(place.data / FILE_NAME, migrations_for("sqlite", MIGRATIONS))
    try:
        yield database
    finally:
        await database.close()


@contextlib.asynccontextmanager
async def opened_ledger(place: Place) -> AsyncIterator[tuple[SqliteLedger, SqliteLedgerAdmin]]:
    """The ledger of the servers at a place, for this process."""
    async with opened_database(place) as database:
        yield SqliteLedger(database, SPACE), SqliteLedgerAdmin(database, SPACE)


async def found_in(place: Place, asks: Sequence[Ask]) -> Found:
    """The content of the ledger, and of the file outside of it."""
    async with opened_ledger(place) as (ledger, admin):
        entries = await admin.page(Query(limit=1 << 30))
        states = {}
        for agent in (*TARGETS, "sink"):
            stored = await ledger.state(agent)
            states[agent] = {key: msgspec.json.decode(value) for key, value in stored.items()}
        contradictions = await admin.verify()
    lines = place.outside.read_text("utf-8").splitlines() if place.outside.exists() else []
    done = Counter((agent, item) for agent, _, item in (line.partition(" ") for line in lines))
    return Found(asks, entries, states, done, contradictions)
