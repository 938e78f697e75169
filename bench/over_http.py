"""Servers beside each other over HTTP: `python -m bench.over_http`, or as a part of `python -m bench`.

A bare ASGI echo on the same HTTP server is the limit. The SDK takes part twice, with event streams, which are its
default, and with answers as JSON alone, and is held against Dragoman with whichever of the two did better at the same
work.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count, product
from pathlib import Path

from bench.http_load import (
    FIRST_ID,
    NOOP,
    Ask,
    Era,
    Expected,
    Requests,
    Script,
    call_for,
    close_session,
    drive,
    open_session,
)
from bench.measure import DRAGOMAN, FASTMCP, HAS_FASTMCP, SDK, SERVERS, SLOTS, Plan, run_alone
from bench.process import BenchError, Command, Process
from bench.rounds import Figures, Run, cpu_of, figures_of, rate_of, ratios_of, rotated
from bench.servers.http_bare import ANSWER

ECHO, SDK_JSON = "bare ASGI echo", f"{SDK}, JSON"
CONNECTIONS = (1, 16, 64)
_START_LIMIT = 30.0
_WARM_UP = 0.1
_VISITORS = 16
_MOST_ROUNDS, _SHARE = 5, 0.4  # And of the time that a run over pipes gets: there are many combinations here.
_MB = 1 << 20


@dataclass(frozen=True)
class Site(Command):
    """A server that takes its port as the last argument."""

    ask: Ask = NOOP
    expected: Expected = Expected()  # noqa: RUF009 - it is frozen.
    says_when: bytes | None = None
    """What it logs when it is ready, if it can be connected to before that."""


def _dragoman(*options: str) -> tuple[str, ...]:
    return (
        *(sys.executable, "-m", "dragoman", "serve", str(SERVERS / "dragoman_tools.py"), *options),
        *("--transport", "streamable-http", "--host", "127.0.0.1", "--port"),
    )


SITES = [
    Site(ECHO, (sys.executable, str(SERVERS / "http_bare.py")), expected=Expected(constant=ANSWER)),
    Site(DRAGOMAN, _dragoman(), SLOTS, records=True, expected=Expected(("null",))),
    Site(SDK, (sys.executable, str(SERVERS / "http_sdk.py"))),
    Site(SDK_JSON, (sys.executable, str(SERVERS / "http_sdk.py"), "json")),
    *([Site(FASTMCP, (sys.executable, str(SERVERS / "http_fast.py")))] if HAS_FASTMCP else []),
]
ONE_WORKER, TWO_WORKERS = f"{DRAGOMAN}, 1 worker", f"{DRAGOMAN}, 2 workers"
WORKER_CONNECTIONS = (16, 64)
WORKER_ASKS = (NOOP, Ask("work"))
_MORE_SLOTS = {name: str(4 * int(slots)) for name, slots in SLOTS.items()}  # They are divided.
WORKERS = [
    Site(
        name,
        _dragoman("--workers", number),
        _MORE_SLOTS,
        records=True,
        expected=Expected(("null",)),
        says_when=b"server started",
    )
    for name, number in ((ONE_WORKER, "1"), (TWO_WORKERS, "2"))
]


@dataclass(frozen=True)
class HttpRun(Run):
    """A run, and what making its calls took of the processor's time."""

    client_cpu: float


class HttpServer:
    """A server process and the sessions that have been opened there."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.name = site.name
        self._site = site
        self._port = _free_port()
        self._requests = Requests(self._port, site.ask.path)
        self._ids = count(FIRST_ID)
        self._sessions: list[str] = []
        self._process = Process(site, folder, str(self._port))

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._process.popen.terminate()
        self._process.end()
        if error is None:
            self._process.check_surplus()

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return self._process.memory

    def wait(self) -> None:
        """Until it can be connected to, and is ready."""
        deadline = time.monotonic() + _START_LIMIT
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
                if self._site.says_when is None or self._process.has_logged(self._site.says_when):
                    return
            except ConnectionRefusedError:
                pass
            if self._process.popen.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{self.name} did not start:\n{self._process.last_words()}")
            time.sleep(0.02)

    def run(self, era: Era, connections: int, seconds: float, ask: Ask | None = None) -> HttpRun:
        """Call for so long on so many connections, each with its own session in the handshake era."""
        with self._named():
            sessions = self._sessions_for(connections) if era is Era.HANDSHAKE else [None] * connections
            cpu = self._process.cpu
            load = call_for(seconds, self._port, sessions, self._ids, self._site.expected, ask or self._site.ask)
            calls = len(load.latencies)
            self._process.check_records(calls)
            return HttpRun(calls, load.seconds, self._process.cpu - cpu, load.latencies, load.cpu)

    def visit(self, sessions: int) -> float:
        """Open so many sessions on a few connections, and end every other one; how long it took."""

        def visits() -> Script:
            for number in range(sessions // _VISITORS):
                opened: list[str] = []
                yield from open_session(self._requests, opened)
                if number % 2:
                    yield from close_session(self._requests, opened[0])

        with self._named():
            seconds, _ = drive(self._port, [visits() for _ in range(_VISITORS)])
        return seconds

    def _sessions_for(self, connections: int) -> Sequence[str | None]:
        if self._site.expected.constant is not None:
            return ["0" * 32] * connections  # Who looks at nothing opens no sessions; the request is as long.

        def openings() -> Script:
            while len(self._sessions) < connections:
                yield from open_session(self._requests, self._sessions)

        drive(self._port, [openings()])  # Not at once: a server with one session for all would mix up equal ids.
        return self._sessions[:connections]

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (BenchError, OSError) as error:
            raise BenchError(f"{self.name}: {error}; the end of its log:\n{self._process.last_words()}") from None


def over_http(plan: Plan) -> Figures:
    """Both eras on one, some and many connections, then what sessions leave behind."""
    plan = replace(plan, rounds=min(plan.rounds, _MOST_ROUNDS), seconds=plan.seconds * _SHARE)
    eras: dict[str, dict[str, Figures]] = {}
    with started(plan, SITES) as servers:
        for era in Era:
            for server in servers:
                server.run(era, max(CONNECTIONS), _WARM_UP)
            eras[era] = {
                str(connections): compared(take_turns(plan, servers, era, connections)) for connections in CONNECTIONS
            }
    return {"rounds": plan.rounds, "eras": eras, "sessions": sessions(plan), "workers": workers(plan)}


def workers(plan: Plan) -> Figures:
    """The modern era with one worker and with two: calls of a tool that does nothing, and of one that works."""
    figures: Figures = {ask.tool: {} for ask in WORKER_ASKS}
    with started(plan, WORKERS) as servers:
        for server in servers:
            server.run(Era.MODERN, max(WORKER_CONNECTIONS), _WARM_UP)
        for ask, connections in product(WORKER_ASKS, WORKER_CONNECTIONS):
            rounds = take_turns(plan, servers, Era.MODERN, connections, ask)
            figures[ask.tool][str(connections)] = {
                "servers": {name: figures_of(runs) | _client(runs) for name, runs in rounds.items()},
                "ratios": ratios_of(rounds, TWO_WORKERS, rate_of),
            }
    return figures


def sessions(plan: Plan) -> Figures:
    """Resident megabytes before and after many sessions, half of them ended and half abandoned."""
    number = 320 if plan.is_short else 10_000
    figures: Figures = {}
    for site in SITES:
        if site.name not in (DRAGOMAN, SDK):
            continue
        with started(plan, [site]) as (server,):
            server.visit(10 * _VISITORS)
            before = server.memory
            seconds = server.visit(number)
            after = server.memory
        figures[site.name] = {
            "sessions": number,
            "before_mb": before / _MB,
            "after_mb": after / _MB,
            "ms_per_session": seconds / number * 1e3,
        }
        plan.say(f"HTTP, {number:,} sessions, {site.name}: {before / _MB:.1f} to {after / _MB:.1f} MB")
    return figures


def compared(rounds: Mapping[str, Sequence[HttpRun]]) -> Figures:
    """All servers at one kind of work; `sdk` is the way to answer with which the SDK did better at it."""
    servers = {name: figures_of(runs) | _client(runs) for name, runs in rounds.items()}
    return {
        "servers": servers,
        "sdk": max((SDK, SDK_JSON), key=lambda name: servers[name]["median"]),
        "ratios": ratios_of(rounds, DRAGOMAN, rate_of),
        "cpu_ratios": ratios_of(rounds, DRAGOMAN, cpu_of),
    }


def _client(runs: Sequence[HttpRun]) -> Figures:
    """What the calls took on this side. With a share near 1 or above, it is not the server that is measured."""
    spent = sum(run.client_cpu for run in runs)
    return {
        "client_us": spent / sum(run.calls for run in runs) * 1e6,
        "client_share": statistics.median(run.client_cpu / run.calls / cpu_of(run) for run in runs),
    }


@contextmanager
def started(plan: Plan, sites: Sequence[Site]) -> Iterator[list[HttpServer]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(HttpServer(site, plan.folder)) for site in sites]
        for server in servers:
            server.wait()
        yield servers


def take_turns(
    plan: Plan, servers: Sequence[HttpServer], era: Era, connections: int, ask: Ask | None = None
) -> dict[str, list[HttpRun]]:
    runs: dict[str, list[HttpRun]] = {server.name: [] for server in servers}
    for turn in range(plan.rounds):
        for server in rotated(servers, turn):
            runs[server.name].append(server.run(era, connections, plan.seconds, ask))
        rates = ", ".join(f"{name} {done[-1].rate:,.0f}/s" for name, done in runs.items())
        plan.say(f"HTTP, {era} era, {connections} open, round {turn + 1} of {plan.rounds}: {rates}")
    return runs


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    from bench import report  # It knows the names of our servers.

    sys.exit(run_alone(over_http, "Servers side by side over HTTP.", report.over_http, report.http_targets))
