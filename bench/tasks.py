"""Tasks over HTTP, beside calls of the same server and FastMCP's tasks: `python -m bench tasks`.

A connection creates a few tasks of a tool that does nothing, and then looks at each of them until it is done, without a
pause. Dragoman keeps them in a database and, as another server, in memory; FastMCP keeps them in memory. Calls and
`tasks/get` are asked of the server with the database.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from typing import Any

import msgspec

from bench.http_load import Answer, Era, Load, Requests, Script, drive
from bench.measure import FASTMCP, SELDOM, SERVERS, SLOTS
from bench.over_http import NULL, HttpServer, Site, started
from bench.process import BenchError
from bench.rounds import Figures, Plan, Rounds, Way, compared, cpu_of, rate_of, ratio_of, take_turns
from dragoman.protocol.versions import TASKS_EXTENSION

HAS_FASTMCP_TASKS = find_spec("fastmcp_tasks") is not None
CONNECTIONS = (16, 64)
CALL, GET = "tools/call", "tasks/get"
IN_DATABASE, IN_MEMORY, IN_FASTMCP = (f"create to done, {each}" for each in ("database", "memory", FASTMCP))
WAITING = 10_000
_TASKS_AT_ONCE = 8
_WARM_UP = 0.1
_MB = 1 << 20
_CAPABILITIES: dict[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}
_SETTINGS = {
    **SLOTS,
    "DRAGOMAN_TASKS__MAX_CONCURRENT": "64",
    "DRAGOMAN_TASKS__MAX_WAITING": str(2 * WAITING),
    "DRAGOMAN_SERVER__SHUTDOWN_TIMEOUT_MS": "100",
}


class TaskClient:
    """The requests about tasks to the server on a port, and what was seen of the answers."""

    def __init__(self, port: int, tool: str = "noop") -> None:
        self._port = port
        self._requests = Requests(port)
        self._create = self._requests.modern("tools/call", {"name": tool, "arguments": {}}, tool, _CAPABILITIES)

    def complete(self, seconds: float, connections: int) -> Load:
        """Create tasks for so long, each of which is looked at until it is done; the latency is until then."""
        latencies: list[float] = []
        deadline = time.perf_counter() + seconds

        def script() -> Script:
            while time.perf_counter() < deadline:
                created: list[tuple[float, str]] = []
                for _ in range(_TASKS_AT_ONCE):
                    began = time.perf_counter()
                    created.append((began, _created((yield self._create))))
                for began, task_id in created:
                    look = self._look_at(task_id)
                    while not _is_done((yield look)):
                        pass
                    latencies.append(time.perf_counter() - began)

        return Load(*drive(self._port, [script() for _ in range(connections)]), latencies)

    def create(self, number: int, connections: int = 16) -> list[str]:
        """Create so many tasks; their ids."""
        found: list[str] = []

        def script() -> Script:
            for _ in range(number // connections):
                data = yield self._create
                found.append(_created(data))

        drive(self._port, [script() for _ in range(connections)])
        return found

    def look(self, seconds: float, tasks: Iterable[str]) -> Load:
        """Look at tasks that are done for so long, each on a connection of its own."""
        latencies: list[float] = []
        answers: list[bytes] = []
        deadline = time.perf_counter() + seconds

        def script(task_id: str) -> Script:
            request = self._look_at(task_id)
            while (began := time.perf_counter()) < deadline:
                answers.append((yield request))
                latencies.append(time.perf_counter() - began)

        load = drive(self._port, map(script, tasks))
        if not all(map(_is_done, answers)):
            raise BenchError("a task that was done is no longer")
        return Load(*load, latencies)

    def wait_for(self, tasks: Iterable[str]) -> None:
        """Until each of them is done."""

        def script() -> Script:
            for task_id in tasks:
                while not _is_done((yield self._look_at(task_id))):
                    pass

        drive(self._port, [script()])

    def _look_at(self, task_id: str) -> bytes:
        return self._requests.modern("tasks/get", {"taskId": task_id}, task_id, _CAPABILITIES)


class _Task(msgspec.Struct, rename="camel"):
    task_id: str
    status: str
    result_type: str
    result: dict[str, Any] | None = None


class _Answer(msgspec.Struct):
    result: _Task


_decode = msgspec.json.Decoder(_Answer).decode


def _task_in(data: bytes) -> _Task:
    answer = Answer.read(data)
    try:
        return _decode(answer.message).result
    except msgspec.DecodeError as error:
        raise BenchError(f"answered with {answer.status}, {answer.message[:300]!r}: {error}") from None


def _created(data: bytes) -> str:
    task = _task_in(data)
    if task.result_type != "task":
        raise BenchError(f"no task was created, but {task}")
    return task.task_id


def _is_done(data: bytes) -> bool:
    task = _task_in(data)
    if task.status == "completed" and task.result is not None and task.result["isError"] is False:
        return True
    if task.status != "working":
        raise BenchError(f"a task has come to {task}")
    return False


def sites(plan: Plan, folder: str) -> list[Site]:
    """Dragoman with a database in this folder and in memory, and FastMCP."""
    argv = (
        *(sys.executable, "-m", "dragoman", "serve", str(SERVERS / "dragoman_tasks.py")),
        *("--transport", "streamable-http", "--host", "127.0.0.1", "--port"),
    )
    kept = {"DRAGOMAN_STORAGE__DATA_DIR": str(plan.folder / folder)}
    sites = [
        Site(IN_DATABASE, argv, _SETTINGS | kept, records=True, expected=NULL),
        Site(IN_MEMORY, argv, _SETTINGS | {"DRAGOMAN_STORAGE__ENGINE": "memory"}, records=True, expected=NULL),
    ]
    if HAS_FASTMCP_TASKS:
        sites.append(Site(IN_FASTMCP, (sys.executable, str(SERVERS / "http_fast_tasks.py")), every=SELDOM))
    else:
        plan.say("tasks: FastMCP's tasks are not installed (requirements-bench.lock has them), so they are left out")
    return sites


def path_of(connections: int) -> str:
    return f"tasks, HTTP, {connections} connections"


def tasks(plan: Plan) -> Figures:
    """Calls, `tasks/get` and tasks from their creation to their end; and the memory of a server where many wait."""
    works: dict[str, Rounds] = {}
    with started(plan, sites(plan, "tasks")) as servers:
        (ours, *_) = servers
        for server in servers:
            server.under(lambda port: TaskClient(port).complete(_WARM_UP, min(CONNECTIONS)))
        done: list[str] = []

        def make(port: int) -> Load:
            done.extend(TaskClient(port).create(max(CONNECTIONS)))
            TaskClient(port).wait_for(done)
            return Load(0.0, 0.0, [0.0] * len(done))

        ours.under(make)
        for connections in CONNECTIONS:
            ways = _ways(plan, servers, connections, done[:connections])
            works[path_of(connections)] = take_turns(plan, ways, path_of(connections))
    return {
        "works": {path: compared(rounds, IN_DATABASE) for path, rounds in works.items()},
        "get_ratios": {path: ratio_of(rounds[CALL], rounds[GET], cpu_of) for path, rounds in works.items()},
        "rate_ratios": {
            path: ratio_of(rounds[IN_DATABASE], rounds[IN_FASTMCP], rate_of)
            for path, rounds in works.items()
            if IN_FASTMCP in rounds
        },
        "waiting": _waiting(plan),
    }


def _ways(plan: Plan, servers: list[HttpServer], connections: int, done: list[str]) -> list[Way]:
    (ours, *_) = servers

    def look(port: int) -> Load:
        return TaskClient(port).look(plan.seconds, done)

    def complete(port: int) -> Load:
        return TaskClient(port).complete(plan.seconds, connections)

    return [
        Way(CALL, partial(ours.run, Era.MODERN, connections, plan.seconds)),
        Way(GET, partial(ours.under, look, leaves_records=False)),
        *(Way(server.name, partial(server.under, complete), server.site.every) for server in servers),
    ]


def _waiting(plan: Plan) -> Figures:
    """Resident megabytes before and after tasks were created that wait, by where they are kept."""
    number = 320 if plan.is_short else WAITING
    figures: Figures = {}
    for site in sites(plan, "waiting")[:2]:
        with started(plan, [site]) as (server,):
            server.under(lambda port: TaskClient(port).complete(_WARM_UP, min(CONNECTIONS)))
            before, began = server.memory, time.perf_counter()

            def create(port: int) -> Load:
                return Load(0.0, 0.0, [0.0] * len(TaskClient(port, "wait").create(number)))

            server.under(create)
            figures[site.name] = {
                "tasks": number,
                "before_mb": before / _MB,
                "after_mb": server.memory / _MB,
                "ms_per_task": (time.perf_counter() - began) / number * 1e3,
            }
        plan.say(f"tasks, {number:,} that wait, {site.name}: {figures[site.name]['after_mb'] - before / _MB:+.1f} MB")
    return figures
