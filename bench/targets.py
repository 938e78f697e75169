"""The targets, beside the figures. A missed target is reported, and is not an error.

What counts is the server's processor time per call: of all figures it depends least on what else the machine does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.actions import PACED
from bench.bridge import PUBLIC
from bench.cache import EVICT, GET, REPLACE
from bench.in_process import ONE_BY_ONE
from bench.later import ALONE, FEW, MANY
from bench.lock import TARGET_MS
from bench.measure import BARE, DRAGOMAN, FEW_TOOLS, IN_FLIGHT, LOADED, SDK, path_of
from bench.over_http import ECHO, SDK_LOW
from bench.protection import METRICS
from bench.rounds import Figures
from bench.starts import CALL, HELP, SERVE

_MILLION = 1_000_000


@dataclass(frozen=True)
class Target:
    """A figure with its quartiles, and what it should be: at most `goal`, or at least."""

    name: str
    figure: float
    low: float
    high: float
    goal: float
    unit: str = "x"
    is_least: bool = False

    @classmethod
    def of(cls, name: str, spread: Figures, goal: float, unit: str = "x", *, is_least: bool = False) -> Target:
        return cls(name, spread["median"], spread["low"], spread["high"], goal, unit, is_least)

    @classmethod
    def once(cls, name: str, figure: float, goal: float, unit: str = "x", *, is_least: bool = False) -> Target:
        """A figure that is measured only once, or is a median already."""
        return cls(name, figure, figure, figure, goal, unit, is_least)

    @property
    def is_reached(self) -> bool:
        return self.figure >= self.goal if self.is_least else self.figure <= self.goal

    @property
    def wanted(self) -> str:
        return f"at {'least' if self.is_least else 'most'} {number(self.goal, self.unit)}"

    @property
    def found(self) -> str:
        word = _fraction if self.unit == "x" and 0 < self.figure < _SMALL else _plain
        figure, low, high = (word(each, self.unit) for each in (self.figure, self.low, self.high))
        return figure if low == high else f"{figure} ({low.split()[0]} to {high.split()[0]})"

    def row(self) -> tuple[str, ...]:
        return self.name, self.found, self.wanted, "reached" if self.is_reached else "missed"


_SMALL = 0.5


def number(value: float, unit: str = "x") -> str:
    """Three digits; a small ratio is a fraction, as in 1/70."""
    return _fraction(value) if unit == "x" and 0 < value < _SMALL else _plain(value, unit)


def _fraction(value: float, _: str = "x") -> str:
    return f"1/{1 / value:.3g}"


def _plain(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"


def _over_stdio(figures: Figures) -> list[Target]:
    works = figures["works"]
    many, one = works[path_of(IN_FLIGHT)], works[path_of(1)]
    return [
        Target.of("stdio, 32 in flight: CPU per call against the SDK's", many[SDK]["ratio"], 1 / 70),
        Target.of("stdio, 32 in flight: CPU per call against the bare loop's", many[BARE]["ratio"], 4.5),
        *(
            Target.of(
                f"stdio, {kind}: CPU per call against the SDK's", works[path_of(IN_FLIGHT, kind)][SDK]["ratio"], goal
            )
            for kind, goal in (("100 KB", 1 / 3), ("1 MB", 2 / 3), ("sync", 1 / 15))
        ),
        Target.once(
            "stdio, 1 in flight: p50 against the bare loop's", one[DRAGOMAN]["p50_us"] / one[BARE]["p50_us"], 2
        ),
    ]


def _many_tools(figures: Figures) -> list[Target]:
    (among,) = figures["works"].values()
    return [
        Target.of("stdio, 32 in flight: CPU per call among 10,000 tools against 5", among[FEW_TOOLS]["ratio"], 1.05)
    ]


def _start_up(figures: Figures) -> list[Target]:
    return [Target.of("start-up to the first answer against the SDK's", figures["ratio"], 0.5)]


def _starts(figures: Figures) -> list[Target]:
    return [
        Target.of(f"{name}: CPU against `python -c pass`", figures["ratios"][name], goal)
        for name, goal in ((SERVE, 17), (HELP, 19), (CALL, 19))
    ]


def _memory(figures: Figures) -> list[Target]:
    return [
        Target.once("memory against the SDK's", figures[DRAGOMAN] / figures[SDK], 1),
        Target.once("memory with the SDK loaded against the SDK's", figures[LOADED] / figures[SDK], 1),
    ]


def _growth(figures: Figures) -> list[Target]:
    return [Target.once(f"memory growth over {figures['calls']:,} calls", figures["grown_mb"], 10, "MB")]


def _idle(figures: Figures) -> list[Target]:
    return [
        Target.once(f"idle, {name}: wake-ups of a process", found["busiest"], found["goal"], "/s")
        for name, found in figures.get("kinds", {}).items()
    ]


def _in_process(figures: Figures) -> list[Target]:
    (ways,) = figures["works"].values()
    return [Target.of("in process: CPU per call", ways[ONE_BY_ONE]["cpu_us"], 5, "µs")]


def _cache(figures: Figures) -> list[Target]:
    slowest = slowest_of(figures, "lru")
    return [Target.once("cache: a million operations a second", slowest, _MILLION, "/s", is_least=True)]


def slowest_of(cache: Figures, policy: str) -> float:
    """Of each operation its best round: what it takes when nobody else is at the processor's caches."""
    return float(min(cache["per_second"][policy][kind]["most"] for kind in (GET, REPLACE, EVICT)))


def _protection(figures: Figures) -> list[Target]:
    calls = figures["settings"]["calls"]
    return [Target.once("metrics, per call", calls[METRICS]["more_us"], 3, "µs")] if METRICS in calls else []


def _over_http(figures: Figures) -> list[Target]:
    """One connection has no targets: there, most of the time goes to waking up who sleeps, whatever the server."""
    works, found = figures["works"], []
    busy = [path for path in figures["session_ratios"] if path != _ALONE]
    for path in busy:
        found += [
            Target.of(f"{path}: CPU per call against the bare ASGI echo's", works[path][ECHO]["ratio"], 1),
            Target.of(f"{path}: CPU per call against the SDK's", works[path][SDK_LOW]["ratio"], 1 / 6),
            Target.of(
                f"{path}: CPU per call in a session against the modern era", figures["session_ratios"][path], 1.15
            ),
        ]
    found += [
        Target.of(f"{path}: calls/s of 2 workers against 1", ratio, 1.7, is_least=True)
        for path, ratio in figures["worker_ratios"].items()
    ]
    echoes = [works[path][ECHO] for path in busy]
    client = max(echo["client_us"] / echo["cpu_us"]["median"] for echo in echoes)
    return [*found, Target.once("HTTP: CPU of the client against the bare ASGI echo's", client, 0.75)]


_ALONE = "HTTP, 1 connection"


def _bridge(figures: Figures) -> list[Target]:
    """Against the public bridge, and against apcore by itself."""
    alone, modules = figures["alone"][DRAGOMAN], figures["modules"]
    return [
        *(
            Target.of(f"{path}: CPU per call against the public one's", server["ratio"], 1 / 10)
            for path, work in figures["works"].items()
            for name, server in work.items()
            if name.startswith(PUBLIC)
        ),
        Target.once("bridge: routing, beyond the executor", alone["routing_us"] / 1e3, 0.1, "ms"),
        Target.once(f"bridge: {modules} tools, beyond their definitions", alone["beyond_ms"], 20, "ms"),
        Target.once(f"bridge: memory of {modules} tools", alone["tools_mb"], 10, "MB"),
    ]


def _agents(figures: Figures) -> list[Target]:
    """Requests a second, each as a multiple of another figure of the same round."""
    ratios = figures["rate_ratios"]
    wanted = {
        "bare_64": ("agents, 256 senders to 64 agents: requests/s against the bare loop's", 0.5),
        "bare_1": ("agents, 256 senders to 1 agent: requests/s against the bare loop's", 0.35),
        "dbos": ("agents, 256 senders to 64 agents: requests/s against those of DBOS", 20),
        "in_memory": ("agents, messages in memory: messages/s against calls of tools", 0.6),
        "rows": ("agents, many rows in the ledger: requests/s against few", 0.8),
    }
    return [
        Target.of(title, ratios[name], goal, is_least=True) for name, (title, goal) in wanted.items() if name in ratios
    ]


def _tasks(figures: Figures) -> list[Target]:
    return [
        *(
            Target.of(f"{path}: CPU of tools/call against that of tasks/get", ratio, 0.4, is_least=True)
            for path, ratio in figures["get_ratios"].items()
        ),
        *(
            Target.of(f"{path}: tasks/s, in a database, against FastMCP's, in memory", ratio, 5, is_least=True)
            for path, ratio in figures["rate_ratios"].items()
        ),
    ]


def _actions(figures: Figures) -> list[Target]:
    growth = figures["growth"]
    return [
        *(
            Target.of(f"{path}: actions/s against the bare handler's", ratio, 0.5, is_least=True)
            for path, ratio in figures["rate_ratios"].items()
        ),
        Target.once(f"{PACED}: p95 of the answer", figures["works"][PACED][DRAGOMAN]["p95_us"] / 1e3, 50, "ms"),
        Target.once(
            f"actions: memory growth over {growth['documents']:,} documents",
            growth["after_mb"] - growth["before_mb"],
            10,
            "MB",
        ),
    ]


def _later(figures: Figures) -> list[Target]:
    alone, few, many = (figures["small"][name] for name in (ALONE, FEW, MANY))
    p99 = "later, a small tenant: p99 beside"
    return [
        *(
            Target.of(f"{name}: finished/s against those answered at once", ratio, 0.5, is_least=True)
            for name, ratio in figures["rate_ratios"].items()
        ),
        Target.once(
            f"{p99} {many['waiting']:,} waiting against {few['waiting']:,}", many["p99_ms"] / few["p99_ms"], 1.2
        ),
        *(
            Target.once(f"{p99} {each['waiting']:,} waiting against alone", each["p99_ms"] / alone["p99_ms"], 10)
            for each in (few, many)
        ),
    ]


def _artifacts(figures: Figures) -> list[Target]:
    growth = figures["growth"]
    grown = growth["after_mb"] - growth["before_mb"]
    return [Target.once(f"artifacts: memory growth over {growth['uploaded_mb']:,} MiB of uploads", grown, 10, "MB")]


def _queries(figures: Figures) -> list[Target]:
    """Beside the bare statements, and beside the same tenant when it is alone."""
    found = []
    for size, measured in figures.items():
        alone, *_, many = measured["tenants"].items()
        for kind in ("words", "vectors"):
            name = f"queries by {kind}, {int(size):,} passages"
            found.append(Target.once(f"{name}: against the bare statement's", alone[1][kind]["ratio"], 2))
            # By what each took more than the bare statement did at the same time.
            among = many[1][kind]["ratio"] / alone[1][kind]["ratio"]
            found.append(Target.once(f"{name}: among {many[0]} tenants against {alone[0]}", among, 1.25))
    return found


def _lock(figures: Figures) -> list[Target]:
    return [
        Target.of(f"write lock, {name}: the longest hold", found["longest_ms"], TARGET_MS, "ms")
        for name, found in figures.items()
    ]


_BY_SECTION: dict[str, Callable[[Figures], list[Target]]] = {
    "over_stdio": _over_stdio,
    "many_tools": _many_tools,
    "in_process": _in_process,
    "over_http": _over_http,
    "start_up": _start_up,
    "starts": _starts,
    "memory": _memory,
    "growth": _growth,
    "idle": _idle,
    "cache": _cache,
    "protection": _protection,
    "bridge": _bridge,
    "agents": _agents,
    "tasks": _tasks,
    "actions": _actions,
    "later": _later,
    "artifacts": _artifacts,
    "queries": _queries,
    "lock": _lock,
}


def targets(results: Figures) -> list[Target]:
    """Those of the sections that were measured."""
    return [target for name, of in _BY_SECTION.items() if name in results for target in of(results[name])]
