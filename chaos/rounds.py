"""Rounds of servers that are killed under load, each on a data directory of its own and checked at its end.

Now and then all servers of a round are stopped for longer than a lease, and go on. Some of them have a disk that fails:
one of several commits ends with an I/O error.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from chaos.disk_errors import can_fail
from chaos.servers import LEASE_MS, Place, Served
from dragoman.process.exit_codes import ABANDONED

AT_RANDOM = "at random"
KILLS_OF_A_ROUND = 50
LANES = 16
_MOST_TIMES = 6
"""A server dies the first time that it passes its point, or one of these times: there are seven agents to take over."""
KILLS_OF_A_SLEEP = 10
"""All servers sleep once for so many kills."""
COMMIT_FAILED = "a commit has failed"
_ASLEEP = 1.3 * LEASE_MS / 1000
_FAILING = ("--commit-errors", "8")
"""For servers whose disk fails at one of so many commits."""
_STOPPED = 0.2
"""Of the servers that do not die at a point, the share that SIGTERM ends."""
_POINT_LIMIT = 4.0
"""Seconds after which a server that answers and has not reached its point is killed at random."""
_START_LIMIT = 60.0


@dataclass
class Report:
    """The result of a run."""

    kills: Counter[str] = field(default_factory=Counter)
    """By point."""
    missed: Counter[str] = field(default_factory=Counter)
    """Points that a server did not reach in time; it was killed at random."""
    sleeps: int = 0
    commit_errors: int = 0
    stops: int = 0
    """Servers that SIGTERM ended, which gives back what they hold."""
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


class Load(Protocol):
    """Clients that ask until they are stopped."""

    problems: list[str]
    unsettled: int
    """How often an answer was not the outcome, or the server ended first."""

    async def run(self, lanes: int) -> None:
        """Ask until `stop`; every request that was begun has its outcome then."""
        ...

    def stop(self) -> None: ...


class Run:
    """A run under way."""

    def __init__(self, kind: type[Round], kills: int, folder: Path, seed: int) -> None:
        self._kind = kind
        self._kills = kills
        self._folder = folder
        self._chance = random.Random(seed)
        self._ways = Ways(kind.points, self._chance)
        self.report = Report()

    async def run(self) -> Report:
        started, sizes = time.monotonic(), self._kind.sizes
        at_once = min(KILLS_OF_A_ROUND, -(-self._kills // len(sizes)))
        while self.report.count < self._kills and not self.report.problems:
            size = sizes[self.report.rounds % len(sizes)]
            self.report.rounds += 1
            folder = self._folder / f"round-{self.report.rounds}"
            shutil.rmtree(folder, ignore_errors=True)
            most = min(self._kills, self.report.count + at_once)
            await self._kind(folder, self.report, self._chance, most, self._ways, size).run()
            if not self.report.problems:
                shutil.rmtree(folder)
        self.report.seconds = round(time.monotonic() - started, 1)
        return self.report


class Ways:
    """How servers die: each point in turn until all were reached, and then every other one at a random moment."""

    def __init__(self, points: Sequence[str], chance: random.Random) -> None:
        self._points = points
        self._chance = chance
        self._due = deque(points)
        self._turn = 0

    def next(self) -> str | None:
        """A point, or None for a random moment."""
        if self._due:
            return self._due.popleft()
        self._turn += 1
        return self._chance.choice(self._points) if self._turn % 2 else None

    def missed(self, point: str) -> None:
        """Try a point again later."""
        self._due.append(point)


class Round(ABC):
    """Servers at a time on one data directory; who dies is replaced."""

    points: ClassVar[Sequence[str]]
    sizes: ClassVar[Sequence[int]]
    """How many servers there are at a time, round by round."""

    def __init__(
        self, folder: Path, report: Report, chance: random.Random, most: int, ways: Ways, servers: int
    ) -> None:
        self._place = self.place_in(folder)
        self._report, self._chance, self._most, self._ways = report, chance, most, ways
        self._live: list[Served | None] = [None] * servers
        self._all: list[Served] = []
        self._load = self.make_load()
        self._starting = asyncio.Lock()

    @classmethod
    def place_in(cls, folder: Path) -> Place:
        """What is served, and with what settings."""
        return Place(folder)

    @abstractmethod
    def make_load(self) -> Load:
        """The clients of the live servers."""

    @abstractmethod
    async def settle(self, last: Served) -> None:
        """Ask everything once more, and wait until nothing is open."""

    @abstractmethod
    async def check(self) -> None:
        """Add to the report, when all servers have ended."""

    async def run(self) -> None:
        self._place.folder.mkdir(parents=True)
        load = asyncio.create_task(self._load.run(LANES))
        try:
            await asyncio.gather(*(self._keep_killing(slot) for slot in range(len(self._live))))
            self._load.stop()
            last = await self._start()
            self._live[:] = [last] * len(self._live)
            await load
            await self.settle(last)
            code = await last.end(signal.SIGTERM)
            if code != 0:
                self._report.problems.append(f"the last server ended with exit code {code}")
        finally:
            load.cancel()
            for server in self._all:
                if server.process.returncode is None:
                    server.process.kill()
                    await server.process.wait()
        await self.check()
        self._report.commit_errors += sum(server.logged()[COMMIT_FAILED] for server in self._all)
        self._report.asked_again += self._load.unsettled
        self._report.problems += self._load.problems

    def times_of(self, point: str) -> int:
        """How often a server passes a point until it dies there."""
        return self._chance.randint(1, _MOST_TIMES)

    async def serve(self, *arguments: str) -> Served:
        return await Served.start(self._place, *arguments)

    async def _start(self, *arguments: str) -> Served:
        async with self._starting:
            server = await self.serve(*arguments)
            self._all.append(server)
        return server

    async def _sleep_if_due(self) -> None:
        """Let all servers sleep when it is time, and all of them have begun."""
        async with self._starting:  # A server that starts now would be awake, and take the others for silent.
            if self._report.count >= KILLS_OF_A_SLEEP * (self._report.sleeps + 1):
                for server in self._live:
                    if server is not None:
                        await self._begun(server)
                await self._sleep()

    async def _begun(self, server: Served) -> None:
        async with asyncio.timeout(_START_LIMIT):
            await server.has_begun.wait()

    async def _sleep(self) -> None:
        asleep = [server.process for server in self._all if server.process.returncode is None]
        for process in asleep:
            process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(_ASLEEP)
        for process in asleep:
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
        self._report.sleeps += 1

    async def _keep_killing(self, slot: int) -> None:
        while self._report.count < self._most:
            point = self._ways.next()
            server = await self._start(*self._arguments_for(point))
            self._live[slot] = server
            await self._begun(server)
            await self._sleep_if_due()
            killed_at = await (self._at_random(server) if point is None else self._at(server, point))
            self._live[slot] = None
            if killed_at is not None and self._report.count < self._most:
                self._report.kills[killed_at] += 1

    def _arguments_for(self, point: str | None) -> Sequence[str]:
        failing = _FAILING if can_fail() and self._chance.random() < 0.3 else ()
        return failing if point is None else ("--point", point, "--times", str(self.times_of(point)), *failing)

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
