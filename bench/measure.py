"""What is measured over stdio, and without a connection. Sections return figures; calls are under `works`, by path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from bench.cache import RIVALS
from bench.client import Server, Work
from bench.process import BenchError, Command
from bench.rounds import Figures, Plan, Rounds, Run, Way, compared, rotated, spread_of, take_turns

ROOT = Path(__file__).parents[1]
BARE, DRAGOMAN, SDK, FASTMCP = "bare loop", "Dragoman", "official SDK", "FastMCP"
HAS_FASTMCP = find_spec("fastmcp") is not None
LOADED = f"{DRAGOMAN}, SDK loaded"
IN_FLIGHT = 32
SELDOM = 3
"""Servers that no target is about take part in every third round."""
FEW_TOOLS, MANY_TOOLS = f"{DRAGOMAN}, 5 tools", f"{DRAGOMAN}, 10,000 tools"

SERVERS = ROOT / "bench" / "servers"
SLOTS = {"DRAGOMAN_RESOURCES__MAX_CONCURRENT_EXECUTIONS": "64"}
_LINE = "All the world's a stage, and all the men and women merely players.\n"
_SIZES = {"1 KB": 1_000, "100 KB": 100_000, "1 MB": 1_000_000}
ARGUMENTS = {label: (_LINE * (size // len(_LINE) + 1))[:size] for label, size in _SIZES.items()}
_BATCH = 50_000
_MB = 1 << 20


def _script(name: str, file: str) -> Command:
    return Command(name, (sys.executable, str(SERVERS / file)))


def _dragoman(name: str, target: str) -> Command:
    argv = (sys.executable, "-m", "dragoman", "serve", str(SERVERS / target))
    return Command(name, argv, SLOTS, records=True)


COMMANDS = [
    _script(BARE, "bare.py"),
    _dragoman(DRAGOMAN, "dragoman_tools.py"),
    _script(SDK, "sdk.py"),
    *([replace(_script(FASTMCP, "fast.py"), every=SELDOM)] if HAS_FASTMCP else []),
]
_BY_NAME = {command.name: command for command in COMMANDS}


def over_stdio(plan: Plan) -> Figures:
    """All servers at the same work: many calls in flight and one, other kinds of handlers, larger arguments."""
    with started(plan, COMMANDS) as servers:
        bare, ours, sdk = servers[:3]
        works = {
            path_of(IN_FLIGHT): (servers, Work(in_flight=IN_FLIGHT)),
            path_of(1): (servers, Work(in_flight=1)),
            **{path_of(IN_FLIGHT, tool): ([ours, sdk], Work(tool, IN_FLIGHT)) for tool in ("once", "sync")},
            **{
                path_of(IN_FLIGHT, size): ([bare, ours, sdk], Work("take", IN_FLIGHT, argument))
                for size, argument in ARGUMENTS.items()
            },
        }
        return {
            "works": {
                path: compared(call_in_turns(plan, taking_part, work, path), DRAGOMAN)
                for path, (taking_part, work) in works.items()
            }
        }


def path_of(in_flight: int, kind: str = "") -> str:
    """The path of calls over stdio; `kind` is a tool, or the size of the arguments."""
    return f"stdio, {in_flight} in flight" + (f", {kind}" if kind else "")


def many_tools(plan: Plan) -> Figures:
    """What a call costs among 10,000 tools, against 5.

    The difference is small, and two processes of the same kind differ by up to a tenth for as long as they live. So
    runs are shorter, and each round has processes of its own.
    """
    commands = [_dragoman(FEW_TOOLS, "dragoman_tools.py"), _dragoman(MANY_TOOLS, "dragoman_many.py:many")]
    shorter = replace(plan, rounds=3, seconds=plan.seconds / 3, say=lambda _: None)
    rounds: dict[str, dict[int, Run]] = {command.name: {} for command in commands}
    for turn in range(plan.rounds):
        with started(plan, rotated(commands, turn)) as servers:
            for name, runs in call_in_turns(shorter, servers, Work(in_flight=IN_FLIGHT), "").items():
                rounds[name] |= {turn * shorter.rounds + number: run for number, run in runs.items()}
        plan.say(f"number of tools, round {turn + 1} of {plan.rounds}")
    return {"works": {path_of(IN_FLIGHT, "number of tools"): compared(rounds, MANY_TOOLS)}}


def start_up(plan: Plan) -> Figures:
    """Seconds from starting a process to its answer to `initialize`."""
    seconds: dict[str, list[float]] = {command.name: [] for command in COMMANDS}
    for turn in range(plan.start_ups):
        for command in rotated(COMMANDS, turn):
            with Server(command, plan.folder) as server:
                seconds[command.name].append(server.first_answer.seconds)
        plan.say(f"start-up, {turn + 1} of {plan.start_ups}")
    return {
        "seconds": {name: spread_of(each) for name, each in seconds.items()},
        "ratio": spread_of(mine / theirs for mine, theirs in zip(seconds[DRAGOMAN], seconds[SDK], strict=True)),
    }


def memory(plan: Plan) -> Figures:
    """Resident megabytes after 1,000 calls; Dragoman's again when a method that it leaves to the SDK has been asked."""
    figures: Figures = {}
    for command in COMMANDS:
        with Server(command, plan.folder) as server:
            server.run(Work(in_flight=IN_FLIGHT), 1_000)
            figures[command.name] = server.memory / _MB
            if command.name == DRAGOMAN:
                server.request("prompts/list", {})
                server.run(Work(in_flight=IN_FLIGHT), 1_000)
                figures[LOADED] = server.memory / _MB
        plan.say(f"memory of {command.name}: {figures[command.name]:.1f} MB")
    return figures


def growth(plan: Plan) -> Figures:
    """Resident megabytes that calls leave behind, once the server is warm."""
    with Server(_BY_NAME[DRAGOMAN], plan.folder) as server:
        server.run(Work(in_flight=IN_FLIGHT), _BATCH)
        before = server.memory
        seconds = 0.0
        for done in range(_BATCH, plan.growth_calls + 1, _BATCH):
            seconds += server.run(Work(in_flight=IN_FLIGHT), _BATCH).seconds
            plan.say(f"growth, {done:,} of {plan.growth_calls:,} calls: {(server.memory - before) / _MB:+.2f} MB")
        return {
            "calls": plan.growth_calls,
            "before_mb": before / _MB,
            "after_mb": server.memory / _MB,
            "grown_mb": (server.memory - before) / _MB,
            "calls_per_second": plan.growth_calls / seconds,
        }


def in_process(plan: Plan) -> Figures:
    """Calls through the whole pipeline with no connection, in a process that does nothing else."""
    figures = in_a_process(plan, "in_process", plan.rounds, plan.seconds / 2)
    costs = [f"{name} {each['cpu_us']['median']:.2f} µs" for name, each in figures.items()]
    plan.say("in process: " + ", ".join(costs))
    return {"works": {"in process": figures}}


def cache(plan: Plan) -> Figures:
    """Operations a second of the bounded cache by eviction policy, beside those of cachetools."""
    # Many short rounds: a busy machine leaves some of them alone, and hardly a long one.
    figures = in_a_process(plan, "cache", plan.rounds * 5, 600 if plan.is_short else 2_000)
    ours = {name: kinds for name, kinds in figures["per_second"].items() if name not in RIVALS}
    for policy, kinds in ours.items():
        plan.say(f"cache, {policy}: " + ", ".join(f"{kind} {rate['median']:,.0f}/s" for kind, rate in kinds.items()))
    return figures


def protection(plan: Plan) -> Figures:
    """What each stage of a call costs, and what settings add to it or take off."""
    figures = in_a_process(plan, "protection", plan.rounds * 7, 40 if plan.is_short else 300)
    calls = figures["settings"]["calls"]
    for name, facts in calls.items():
        more = f" ({facts['more_us']:+.2f})" if "more_us" in facts else ""
        plan.say(f"protection, {name}: {facts['us']:.1f} µs{more}")
    for name, reason in figures["settings"]["left_out"].items():
        plan.say(f"protection, {name} is left out: {reason}")
    return figures


def memories(plan: Plan) -> Figures:
    """What the stores of the memory tools do in a second, among few entries and among many."""
    plan.say("memories: filling the stores")
    figures = in_a_process(plan, "memories", "--json", *(["--short"] if plan.is_short else []))
    for adapter, operations in figures["adapters"].items():
        dearest = max(operations, key=lambda name: operations[name]["ratio"])
        ratio = operations[dearest]["ratio"]
        plan.say(f"memories, {adapter}: {dearest!r} is what many entries slow down most, {ratio:.2f} x")
    return figures


def in_a_process(
    plan: Plan, module: str, *arguments: object, environment: Mapping[str, str] | None = None, more_seconds: float = 0.0
) -> Figures:
    """What a module of ours prints as JSON, in a process that does nothing else, and may take `more_seconds`."""
    argv = [sys.executable, "-m", f"bench.{module}", *map(str, arguments)]
    limit = 120 + 4 * plan.rounds * plan.seconds + more_seconds
    try:
        env = os.environ | (environment or {})
        done = subprocess.run(argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, timeout=limit, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"{module}: {error}") from None
    figures: Figures = json.loads(done.stdout)
    return figures


@contextmanager
def started(plan: Plan, commands: Sequence[Command]) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Server(command, plan.folder)) for command in commands]


def call_in_turns(plan: Plan, servers: Sequence[Server], work: Work, title: str) -> Rounds:
    """The same work for every server, round after round."""
    calls = {server.name: _calls_in(server, work, plan.seconds) for server in servers}
    ways = [Way(server.name, partial(server.run, work, calls[server.name]), server.every) for server in servers]
    return take_turns(plan, ways, title)


def _calls_in(server: Server, work: Work, seconds: float) -> int:
    """About how many calls the server answers in so many seconds; finding out warms it up."""
    calls = work.in_flight
    for _ in range(20):
        run = server.run(work, min(calls, work.most_calls))
        if run.seconds >= seconds / 4 or calls >= work.most_calls:
            break
        calls *= 4
    return max(2, work.in_flight, min(int(run.rate * seconds), work.most_calls))  # Fewer have no percentiles.
