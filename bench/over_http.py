"""Servers beside each other over HTTP: `python -m bench over_http`.

A bare ASGI echo on uvicorn is the limit. The SDK takes part three times: its low-level server, stateless and with
answers as JSON alone, which is the cheapest that it has and what Dragoman is held against; and its `MCPServer` with
event streams, which are the default, and with JSON.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from bench.http_load import (
    FIRST_ID,
    NOOP,
    Ask,
    Era,
    Expected,
    Load,
    Requests,
    Script,
    call_for,
    close_session,
    drive,
    open_session,
)
from bench.measure import DRAGOMAN, FASTMCP, HAS_FASTMCP, SDK, SELDOM, SERVERS, SLOTS
from bench.process import BenchError, Command, Process
from bench.rounds import Figures, Plan, Run, Way, compared, cpu_of, rate_of, ratio_of, take_turns
from bench.servers.http_bare import ANSWER

ECHO, SDK_LOW, SDK_JSON = "bare ASGI echo", f"{SDK}, low-level JSON", f"{SDK}, JSON"
CONNECTIONS = (1, 16, 64)
_START_LIMIT = 30.0
_WARM_UP = 0.1
_VISITORS = 16
_MB = 1 << 20


@dataclass(frozen=True)
class Site(Command):
    """A server that takes its port as the last argument."""

    ask: Ask = NOOP
    expected: Expected = Expected()  # noqa: RUF009 - it is frozen.
    says_when: bytes | None = None
    """What it logs when it is ready, if it can be connected to before that."""
    eras: tuple[Era, ...] = tuple(Era)


NULL = Expected(("null",))


def _dragoman(*options: str) -> tuple[str, ...]:
    return (
        *(sys.executable, "-m", "dragoman", "serve", str(SERVERS / "dragoman_tools.py"), *options),
        *("--transport", "streamable-http", "--host", "127.0.0.1", "--port"),
    )


SITES = [
    Site(ECHO, (sys.executable, str(SERVERS / "http_bare.py")), expected=Expected(constant=ANSWER), eras=(Era.MODERN,)),
    Site(DRAGOMAN, _dragoman(), SLOTS, records=True, expected=NULL),
    Site(SDK_LOW, (sys.executable, str(SERVERS / "http_sdk_low.py")), expected=NULL, eras=(Era.MODERN,)),
    Site(SDK, (sys.executable, str(SERVERS / "http_sdk.py")), every=SELDOM),
    Site(SDK_JSON, (sys.executable, str(SERVERS / "http_sdk.py"), "json"), every=SELDOM),
    *([Site(FASTMCP, (sys.executable, str(SERVERS / "http_fast.py")), every=SELDOM)] if HAS_FASTMCP else []),
]
ONE_WORKER, TWO_WORKERS = f"{DRAGOMAN}, 1 worker", f"{DRAGOMAN}, 2 workers"
WORKER_CONNECTIONS = (16, 64)
WORKING = Ask("work")
_MORE_SLOTS = {name: str(4 * int(slots)) for name, slots in SLOTS.items()}  # They are divided.
WORKERS = [
    Site(name, _dragoman("--workers", number), _MORE_SLOTS, records=True, expected=NULL, says_when=b"server started")
    for name, number in ((ONE_WORKER, "1"), (TWO_WORKERS, "2"))
]


class HttpServer:
    """A server process and the sessions that have been opened there."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.name = site.name
        self.site = site
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
    def port(self) -> int:
        return self._port

    @property
    def pid(self) -> int:
        return self._process.popen.pid

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
                if self.site.says_when is None or self._process.has_logged(self.site.says_when):
                    return
            except ConnectionRefusedError:
                pass
            if self._process.popen.poll() is not None or time.monotonic() > deadline:
                raise BenchError(f"{self.name} did not start:\n{self._process.last_words()}")
            time.sleep(0.02)

    def run(self, era: Era, connections: int, seconds: float, ask: Ask | None = None) -> Run:
        """Call for so long on so many connections, each with its own session in the handshake era."""
        with self._named():
            sessions = self._sessions_for(connections) if era is Era.HANDSHAKE else [None] * connections
        expected, what = self.site.expected, ask or self.site.ask
        return self.under(lambda port: call_for(seconds, port, sessions, self._ids, expected, what))

    def under(self, put: Callable[[int], Load], *, leaves_records: bool = True) -> Run:
        """What a load takes that is put on the server's port, and may leave a record of each call."""
        with self._named():
            cpu = self._process.cpu
            load = put(self._port)
            calls = len(load.latencies)
            self._process.check_records(calls if leaves_records else 0)
            return Run(calls, load.seconds, self._process.cpu - cpu, load.latencies, load.cpu)

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
    """Both eras on one, some and many connections, what sessions leave behind, and two workers against one."""
    works: Figures = {}
    session_ratios: Figures = {}
    with started(plan, SITES) as servers:
        for way in ways(servers, max(CONNECTIONS), _WARM_UP):
            way.run()
        for connections in CONNECTIONS:
            path = path_of(connections)
            rounds = take_turns(plan, ways(servers, connections, plan.seconds), path)
            works[path] = compared(rounds, DRAGOMAN)
            session_ratios[path] = ratio_of(rounds[in_session(DRAGOMAN)], rounds[DRAGOMAN], cpu_of)
    working, worker_ratios = workers(plan)
    return {
        "works": works | working,
        "session_ratios": session_ratios,
        "worker_ratios": worker_ratios,
        "sessions": sessions(plan),
    }


def path_of(connections: int, tool: str = "") -> str:
    return f"HTTP, {connections} connection{'s' * (connections > 1)}" + (f", {tool}" if tool else "")


def in_session(name: str) -> str:
    """A server in the handshake era; by its name alone, it is in the modern one."""
    return f"{name}, session"


def ways(servers: Sequence[HttpServer], connections: int, seconds: float) -> list[Way]:
    """Each server in each of its eras."""
    return [
        Way(
            in_session(server.name) if era is Era.HANDSHAKE else server.name,
            partial(server.run, era, connections, seconds),
            server.site.every,
        )
        for server in servers
        for era in server.site.eras
    ]


def workers(plan: Plan) -> tuple[Figures, Figures]:
    """Calls of a tool that works, in the modern era with one worker and with two; and how many more two make.

    With a tool that does nothing, what is left for a second core is the client's.
    """
    works: Figures = {}
    ratios: Figures = {}
    with started(plan, WORKERS) as servers:
        for server in servers:
            server.run(Era.MODERN, max(WORKER_CONNECTIONS), _WARM_UP)
        for connections in WORKER_CONNECTIONS:
            path = path_of(connections, WORKING.tool)
            calls = [
                Way(server.name, partial(server.run, Era.MODERN, connections, plan.seconds, WORKING))
                for server in servers
            ]
            rounds = take_turns(plan, calls, path)
            works[path] = compared(rounds, TWO_WORKERS)
            ratios[path] = ratio_of(rounds[TWO_WORKERS], rounds[ONE_WORKER], rate_of)
    return works, ratios


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


@contextmanager
def started(plan: Plan, sites: Sequence[Site]) -> Iterator[list[HttpServer]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(HttpServer(site, plan.folder)) for site in sites]
        for server in servers:
            server.wait()
        yield servers


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
