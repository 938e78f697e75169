"""One run: rounds of servers that are killed under load, each on a data directory of its own and checked at its end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from chaos.asks import TARGETS, Ask, Load
from chaos.checks import Found, problems_in
from chaos.points import POINTS
from chaos.servers import SPACE, Place, Served
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_ledger import SqliteLedger
from dragoman.adapters.sqlite_ledger_admin import SqliteLedgerAdmin
from dragoman.agents.ledger import OPEN, Query
from dragoman.agents.migrations import MIGRATIONS
from dragoman.process.exit_codes import ABANDONED
from dragoman.storage.migrations import migrations_for

AT_RANDOM = "at random"
KILLS_OF_A_ROUND = 50
_LANES = 16
_MOST_TIMES = 6
"""A server dies the first time that it passes its point, or one of these times: there are seven agents to take over."""
_STOPPED = 0.2
"""Of the servers that do not die at a point, the share that SIGTERM ends."""
_POINT_LIMIT = 4.0
"""Seconds after which a server that answers and has not reached its point is killed at random."""
_START_LIMIT = 60.0
_TAKEN_OVER = "an agent was taken over from a process that has ended"
_QUIET_LIMIT = 60.0


@dataclass
class Report:
    """The result of a run."""

    kills: Counter[str] = field(default_factory=Counter)
    """By point."""
    missed: Counter[str] = field(default_factory=Counter)
    """Points that a server did not reach in time; it was killed at random."""
    stops: int = 0
    """Servers that SIGTERM ended, which gives their agents back."""
    statuses: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    asked_again: int = 0
    messages: int = 0
    takeovers: int = 0
    rounds: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.kills.total()


class Run:
    """A run under way."""

    def __init__(self, kills: int, folder: Path, seed: int) -> None:
        self._kills = kills
        self._folder = folder
        self._chance = random.Random(seed)
        self._ways = Ways(self._chance)
        self.report = Report()

    async def run(self) -> Report:
        started = time.monotonic()
        while self.report.count < self._kills and not self.report.problems:
            self.report.rounds += 1
            folder = self._folder / f"round-{self.report.rounds}"
            shutil.rmtree(folder, ignore_errors=True)
            most = min(self._kills, self.report.count + KILLS_OF_A_ROUND)
            await Round(Place(folder), self.report, self._chance, most, self._ways).run()
            if not self.report.problems:
                shutil.rmtree(folder)
        self.report.seconds = round(time.monotonic() - started, 1)
        return self.report


class Ways:
    """How servers die: each point in turn until all were reached, and then every other one at a random moment."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._due = deque(POINTS)
        self._turn = 0

    def next(self) -> str | None:
        """A point, or None for a random moment."""
        if self._due:
            return self._due.popleft()
        self._turn += 1
        return self._chance.choice(POINTS) if self._turn % 2 else None

    def missed(self, point: str) -> None:
        """Try a point again later."""
        self._due.append(point)


class Round:
    """Two servers at a time on one data directory; who dies is replaced."""

    def __init__(self, place: Place, report: Report, chance: random.Random, most: int, ways: Ways) -> None:
        self._place, self._report, self._chance, self._most = place, report, chance, most
        self._ways = ways
        self._live: list[Served | None] = [None, None]
        self._all: list[Served] = []
        self._load = Load(self._live, chance)

    async def run(self) -> None:
        self._place.folder.mkdir(parents=True)
        load = asyncio.create_task(self._load.run(_LANES))
        try:
            await asyncio.gather(*(self._keep_killing(slot) for slot in range(len(self._live))))
            self._load.stop()
            last = self._live[0] = self._live[1] = await self._start()
            await load
            await self._ask_again(last)
            await self._wait_until_quiet()
            code = await last.end(signal.SIGTERM)
            if code != 0:
                self._report.problems.append(f"the last server ended with exit code {code}")
        finally:
            load.cancel()
            for server in self._all:
                if server.process.returncode is None:
                    server.process.kill()
                    await server.process.wait()
        await self._check()

    async def _start(self, *arguments: str) -> Served:
        server = await Served.start(self._place, *arguments)
        self._all.append(server)
        return server

    async def _keep_killing(self, slot: int) -> None:
        while self._report.count < self._most:
            point = self._ways.next()
            times = str(self._chance.randint(1, _MOST_TIMES))
            server = await self._start(*(() if point is None else ("--point", point, "--times", times)))
            self._live[slot] = server
            async with asyncio.timeout(_START_LIMIT):
                await server.has_begun.wait()
            killed_at = await (self._at_random(server) if point is None else self._at(server, point))
            self._live[slot] = None
            if killed_at is not None and self._report.count < self._most:
                self._report.kills[killed_at] += 1

    async def _at(self, server: Served, point: str) -> str:
        try:
            async with asyncio.timeout(_POINT_LIMIT):
                code = await server.ended()
        except TimeoutError:
            self._report.missed[point] += 1
            self._ways.missed(point)
            await server.end(signal.SIGKILL)
            return AT_RANDOM
        if code != -signal.SIGKILL:
            self._report.problems.append(f"{server.log.name}: a server ended by itself, with exit code {code}")
        return point

    async def _at_random(self, server: Served) -> str | None:
        await asyncio.sleep(self._chance.uniform(0.0, 1.0))
        if self._chance.random() < _STOPPED:
            code = await server.end(signal.SIGTERM)
            if code not in (0, ABANDONED):
                self._report.problems.append(f"{server.log.name}: SIGTERM led to exit code {code}")
            self._report.stops += 1
            return None
        code = await server.end(signal.SIGKILL)
        if code != -signal.SIGKILL:
            self._report.problems.append(f"{server.log.name}: a server ended by itself, with exit code {code}")
        return AT_RANDOM

    async def _ask_again(self, server: Served) -> None:
        """Every request once more: it must have the answer that it had."""

        async def again(asks: Sequence[Ask]) -> None:
            for ask in asks:
                if not await self._load.ask_once(ask, lambda: server):
                    self._report.problems.append(f"request {ask.request_id} has no outcome any more")

        asks = self._load.asks
        await asyncio.gather(*(again(asks[lane::_LANES]) for lane in range(_LANES)))

    async def _wait_until_quiet(self) -> None:
        async with opened_ledger(self._place) as (_, admin):
            deadline = time.monotonic() + _QUIET_LIMIT
            while await admin.page(Query(statuses=OPEN, limit=1)) and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def _check(self) -> None:
        report = self._report
        found = await found_in(self._place, self._load.asks)
        handled = [each for each in found.entries if each.kind != "RESPONSE"]
        report.requests += len(self._load.asks)
        report.asked_again += self._load.unsettled
        report.messages += len(handled)
        report.statuses.update(each.status.value for each in handled)
        report.takeovers += sum(server.logged()[_TAKEN_OVER] for server in self._all)
        report.problems += [*self._load.problems, *problems_in(found)]


@contextlib.asynccontextmanager
async def opened_ledger(place: Place) -> AsyncIterator[tuple[SqliteLedger, SqliteLedgerAdmin]]:
    """The ledger of the servers at a place, for this process."""
    database = SqliteDatabase(place.data / FILE_NAME, migrations_for("sqlite", MIGRATIONS))
    try:
        yield SqliteLedger(database, SPACE), SqliteLedgerAdmin(database, SPACE)
    finally:
        await database.close()


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
