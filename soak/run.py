"""One run: the servers, the clients' lanes, the pace, and the checks on the way and at the end."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from soak import http_scenes, stdio_scenes
from soak.asks import Ask
from soak.http_scenes import HttpClients
from soak.ledger import Ledger
from soak.peer import connected
from soak.servers import Server, complaints_about
from soak.stdio_scenes import StdioClient
from tests.support.http_wire import modern, request
from tests.support.processes import free_port

TOOLS = Path(__file__).parent / "served" / "tools.py"
QUICK_LANES, SLOW_LANES, STDIO_LANES = 8, 12, 2
_LONGEST_STAY = 80.0  # Longer than each limit of the server on slow clients.
_SCENE_LIMIT = 180.0
_RECORD_LIMIT = 240.0  # A call that is older has its record, as no scene takes that long.
_QUIET_LIMIT = 30.0
_TICK = 0.05


@dataclass(frozen=True)
class Plan:
    """How long, how hard, with what. `share` is of one core, for the client and the servers together."""

    seconds: float
    folder: Path
    share: float = 0.25
    seed: int = 1
    tools: Path = TOOLS


class Run:
    """A run under way."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._until = 0.0
        self._may_start = asyncio.Event()
        self._servers: list[Server] = []
        self.ledger = Ledger()
        self.scenes: Counter[str] = Counter()

    async def run(self) -> dict[str, Any]:
        """The report."""
        started, cpu = time.monotonic(), time.process_time()
        port = free_port()
        http = await self._start("http", "--transport", "streamable-http", "--port", str(port))
        self._http = HttpClients(port, self.ledger, self._chance)
        self._stdio = [
            StdioClient((await self._start(name)).process, self.ledger, self._chance, is_modern=is_modern)
            for name, is_modern in (("stdio-handshake", False), ("stdio-modern", True))
        ]
        try:
            readers = [asyncio.create_task(client.run()) for client in self._stdio]
            for client in self._stdio:
                await client.handshake()
            await self._each_scene_once()
            await self._wait_until_quiet()
            descriptors = http.sample().descriptors
            await self._load()
            if all(server.process.returncode is None for server in self._servers):
                await self._wait_until_quiet(descriptors)
                await self._stop()
                await asyncio.gather(*readers)
        finally:
            for server in self._servers:
                if server.process.returncode is None:
                    server.process.kill()
        self.ledger.check()
        for server in self._servers:
            self.ledger.problems += complaints_about(server.name, server.samples)
        return self._report(time.monotonic() - started, time.process_time() - cpu)

    async def _start(self, name: str, *arguments: str) -> Server:
        server = await Server.start(name, self._plan.folder, self.ledger, str(self._plan.tools), *arguments)
        self._servers.append(server)
        return server

    async def _each_scene_once(self) -> None:
        """The warm-up: everything has been imported, and every kind of memory has been taken, before it is measured."""
        for scene, _ in http_scenes.QUICK:
            await self._play(f"http {scene.__name__}", scene(self._http))
        await asyncio.gather(
            *(self._play(f"http {scene.__name__}", scene(self._http, 1.0)) for scene in http_scenes.SLOW)
        )
        for client in self._stdio:
            for stdio_scene, _ in stdio_scenes.QUICK:
                await self._play(f"stdio {stdio_scene.__name__}", stdio_scene(client))

    async def _load(self) -> None:
        self._until = time.monotonic() + self._plan.seconds
        pace, watch = asyncio.create_task(self._keep_pace()), asyncio.create_task(self._watch())
        lanes = [
            *(self._lane("http", self._http, http_scenes.QUICK) for _ in range(QUICK_LANES)),
            *(self._slow_lane() for _ in range(SLOW_LANES)),
            *(self._lane("stdio", client, stdio_scenes.QUICK) for client in self._stdio for _ in range(STDIO_LANES)),
        ]
        await asyncio.gather(*lanes)
        pace.cancel()
        watch.cancel()
        await asyncio.gather(pace, watch, return_exceptions=True)

    async def _lane(self, where: str, clients: Any, scenes: Sequence[tuple[Any, int]]) -> None:
        names, weights = zip(*scenes, strict=True)
        while time.monotonic() < self._until:
            await self._may_start.wait()
            scene = self._chance.choices(names, weights)[0]
            await self._play(f"{where} {scene.__name__}", scene(clients))

    async def _slow_lane(self) -> None:
        while (left := self._until - time.monotonic()) > 0:
            await self._may_start.wait()
            scene = self._chance.choice(http_scenes.SLOW)
            seconds = min(self._chance.uniform(0.5, _LONGEST_STAY), left)
            await self._play(f"http {scene.__name__}", scene(self._http, seconds))

    async def _play(self, name: str, scene: Awaitable[None]) -> None:
        self.scenes[name] += 1
        try:
            async with asyncio.timeout(_SCENE_LIMIT):
                await scene
        except (AssertionError, OSError, EOFError, LookupError, ValueError, asyncio.LimitOverrunError) as error:
            self.ledger.complain(f"{name}: {type(error).__name__}: {error}")

    async def _keep_pace(self) -> None:
        """Scenes start while less of the processor's time has been spent than the plan's share of a core."""
        credit, last, spent = 0.0, time.monotonic(), self._spent()
        while True:
            now, taken = time.monotonic(), self._spent()
            credit = min(credit + self._plan.share * (now - last) - (taken - spent), self._plan.share)
            last, spent = now, taken
            if credit > 0:
                self._may_start.set()
            else:
                self._may_start.clear()
            await asyncio.sleep(_TICK)

    def _spent(self) -> float:
        return time.process_time() + sum(server.cpu for server in self._servers)

    async def _watch(self) -> None:
        """Sample the servers, read their logs, and check that calls which have long been made have their records."""
        made: list[tuple[float, int]] = []
        while True:
            for server in self._servers:
                if server.process.returncode is not None:
                    self.ledger.complain(f"{server.name} ended by itself, with exit code {server.process.returncode}")
                    self._until = 0.0
                    return
                server.samples.append(server.sample())
                server.read_log()
            made.append((time.monotonic(), self.ledger.calls))
            while made[0][0] < time.monotonic() - _RECORD_LIMIT:
                self.ledger.check(made.pop(0)[1])
            await asyncio.sleep(min(15.0, self._plan.seconds / 60))

    async def _wait_until_quiet(self, descriptors: int | None = None) -> None:
        """No call is under way, no slot is taken, the sessions are those that were left, and connections are gone."""
        expected = {"dragoman_calls_in_flight": 0.0, "dragoman_slots_in_use": 0.0}
        deadline = time.monotonic() + _QUIET_LIMIT
        while True:
            expected["dragoman_sessions"] = float(len(self._http.left))
            gauges = await self._gauges()
            found = {name: gauges[name] for name in expected}
            opened = self._servers[0].sample().descriptors
            if found == expected and (descriptors is None or opened <= descriptors):
                return
            if time.monotonic() > deadline:
                self.ledger.complain(
                    f"at rest {found} instead of {expected}; {opened} descriptors, {descriptors} before"
                )
                return
            await asyncio.sleep(0.2)

    async def _gauges(self) -> dict[str, float]:
        async with connected(self._http.port) as peer:
            await peer.send(request(None, method="GET", path="/metrics"))
            families = text_string_to_metric_families((await peer.read()).body.decode())
            return {sample.name: sample.value for family in families for sample in family.samples}

    async def _stop(self) -> None:
        """SIGTERM while a call runs and streams and connections are open; the end of stdin on one of the pipes."""
        asked = self._http.ask(Ask("doze", {"seconds": 0.5}, 0.5))
        async with AsyncExitStack() as stack:
            calling, listening, idle, other = [
                await stack.enter_async_context(connected(self._http.port)) for _ in range(4)
            ]
            session = await self._http.open_session(other)
            await self._http.listen(idle, session)
            await listening.send(modern("subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
            await listening.head()
            await calling.send(asked.modern())
            while not (await self._gauges())["dragoman_calls_in_flight"]:  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.01)
            http, handshake, modern_stdio = self._servers
            http.process.terminate()
            modern_stdio.process.terminate()
            self._stdio[0].stdin.close()
            asked.check((await calling.read()).message)
            for peer in (calling, listening, idle, other):
                await peer.wait_for_end()
        for server in (http, handshake, modern_stdio):
            await server.wait_for_end()

    def _report(self, seconds: float, client_cpu: float) -> dict[str, Any]:
        return {
            "seconds": round(seconds, 1),
            "seed": self._plan.seed,
            "share_of_a_core": self._plan.share,
            "client_cpu": round(client_cpu, 1),
            "calls": self.ledger.calls,
            "refused_for_want_of_a_slot": self.ledger.refused_for_slots,
            "records": dict(self.ledger.outcomes),
            "scenes": dict(sorted(self.scenes.items())),
            "servers": {server.name: server.facts() for server in self._servers},
            "problems": self.ledger.problems,
        }
