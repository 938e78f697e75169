"""What is measured. The machine is noisy, so servers take turns in short runs and are compared round by round.

A figure is the best and the median of its rounds; a ratio is the median of the ratios within each round, because two
runs that follow each other at once saw the same machine, and two that are a minute apart may not have.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.cache import RIVALS
from bench.client import Server, Work
from bench.process import BenchError, Command
from bench.rounds import Figures, Rounds, Run, cpu_of, figures_of, p50_of, rate_of, ratios_of, rotated

ROOT = Path(__file__).parents[1]
BARE, DRAGOMAN, SDK, FASTMCP = "bare loop", "Dragoman", "official SDK", "FastMCP"
HAS_FASTMCP = find_spec("fastmcp") is not None
LOADED = f"{DRAGOMAN}, SDK loaded"
IN_FLIGHT = 32

SERVERS = ROOT / "bench" / "servers"
SLOTS = {"DRAGOMAN_RESOURCES__MAX_CONCURRENT_EXECUTIONS": "64"}
_LINE = "All the world's a stage, and all the men and women merely players.\n"
_SIZES = {"1 KB": 1_000, "100 KB": 100_000, "1 MB": 1_000_000}
ARGUMENTS = {label: (_LINE * (size // len(_LINE) + 1))[:size] for label, size in _SIZES.items()}
_BATCH = 50_000
_MB = 1 << 20


@dataclass(frozen=True)
class Plan:
    """How long everything may take."""

    rounds: int
    seconds: float
    """Of one run of one server."""
    start_ups: int
    growth_calls: int
    is_short: bool
    folder: Path
    say: Callable[[str], None]


def plan_for(*, short: bool, rounds: int | None = None) -> Plan:
    """The plan of a full run or of a short one; where files go and what is said is the caller's."""
    return Plan(
        rounds=rounds or (2 if short else 7),
        seconds=0.25 if short else 0.8,
        start_ups=2 if short else 5,
        growth_calls=50_000 if short else 1_000_000,
        is_short=short,
        folder=Path(),
        say=lambda _: None,
    )


def run_alone(
    section: Callable[[Plan], Figures],
    about: str,
    worded: Callable[[Figures], str],
    targets: Callable[[Figures], Sequence[Any]],
) -> int:
    """Measure one section by itself, as its own command; the exit code."""
    from bench import report  # It knows the sections.

    name = section.__name__
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=about)
    parser.add_argument("--short", action="store_true", help="shorter, to see that it still runs")
    plan = plan_for(short=parser.parse_args().short)
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        try:
            figures = section(replace(plan, folder=Path(folder), say=lambda words: print(words, file=sys.stderr)))
        except BenchError as error:
            print(f"\nFAILED: {error}", file=sys.stderr)
            return 1
    print(worded({name: figures}), report.goals(targets(figures)), sep="\n\n")
    return 0


def _script(name: str, file: str) -> Command:
    return Command(name, (sys.executable, str(SERVERS / file)))


def _dragoman(name: str, target: str) -> Command:
    argv = (sys.executable, "-m", "dragoman", "serve", str(SERVERS / target))
    return Command(name, argv, SLOTS, records=True)


COMMANDS = [
    _script(BARE, "bare.py"),
    _dragoman(DRAGOMAN, "dragoman_tools.py"),
    _script(SDK, "sdk.py"),
    *([_script(FASTMCP, "fast.py")] if HAS_FASTMCP else []),
]
_BY_NAME = {command.name: command for command in COMMANDS}


def side_by_side(plan: Plan) -> Figures:
    """All servers at the same work: many calls in flight and one, other kinds of handlers, larger arguments."""
    with started(plan, COMMANDS) as servers:
        many = take_turns(plan, servers, Work(in_flight=IN_FLIGHT), f"{IN_FLIGHT} in flight")
        one = take_turns(plan, servers, Work(in_flight=1), "1 in flight")
        bare, ours, sdk = servers[:3]
        variants = {
            tool: _compared(take_turns(plan, [ours, sdk], Work(tool, IN_FLIGHT), f"tool {tool!r}"))
            for tool in ("once", "sync")
        }
        payloads = {
            size: _compared(take_turns(plan, [bare, ours, sdk], Work("take", IN_FLIGHT, argument), f"{size} each"))
            for size, argument in ARGUMENTS.items()
        }
    return {
        "in_flight_32": _compared(many) | {"cpu_ratios": ratios_of(many, DRAGOMAN, cpu_of)},
        "in_flight_1": _compared(one) | {"p50_ratios": ratios_of(one, DRAGOMAN, p50_of)},
        "variants": variants,
        "payloads": payloads,
    }


def many_tools(plan: Plan) -> Figures:
    """What a call costs among 1,000 tools, against 3.

    The difference is small, and two processes of the same kind differ by up to a tenth for as long as they live. So
    rounds are shorter, each three have processes of their own, and the cost is the processor's time.
    """
    commands = [_dragoman("3 tools", "dragoman_many.py:few"), _dragoman("1,000 tools", "dragoman_many.py:many")]
    shorter = replace(plan, rounds=3, seconds=plan.seconds / 3)
    rounds: dict[str, list[Run]] = {command.name: [] for command in commands}
    for turn in range(plan.rounds):
        with started(plan, rotated(commands, turn)) as servers:
            for name, runs in take_turns(shorter, servers, Work(in_flight=IN_FLIGHT), "number of tools").items():
                rounds[name] += runs
    dearer = [cpu_of(many) / cpu_of(few) for few, many in zip(*rounds.values(), strict=True)]
    return {
        "calls_per_second": {name: figures_of(runs) for name, runs in rounds.items()},
        "dearer_per_cent": (statistics.median(dearer) - 1) * 100,
        "rounds": [(ratio - 1) * 100 for ratio in dearer],
    }


def start_up(plan: Plan) -> Figures:
    """Seconds from starting a process to its answer to `initialize`."""
    seconds: dict[str, list[float]] = {command.name: [] for command in COMMANDS}
    for turn in range(plan.start_ups):
        for command in rotated(COMMANDS, turn):
            with Server(command, plan.folder) as server:
                seconds[command.name].append(server.start_up)
        plan.say(f"start-up, {turn + 1} of {plan.start_ups}")
    ratios = [mine / theirs for mine, theirs in zip(seconds[DRAGOMAN], seconds[SDK], strict=True)]
    return {
        "seconds": {name: {"best": min(s), "median": statistics.median(s)} for name, s in seconds.items()},
        "ratio_to_sdk": statistics.median(ratios),
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
    plan.say("in process: " + ", ".join(f"{name} {rate['median']:,.0f}/s" for name, rate in figures.items()))
    return figures


def cache(plan: Plan) -> Figures:
    """Operations a second of the bounded cache by eviction policy, beside those of cachetools."""
    # Many short rounds: a busy machine leaves some of them alone, and hardly a long one.
    figures = in_a_process(plan, "cache", plan.rounds * 10, int(plan.seconds * 2_500))
    ours = {name: kinds for name, kinds in figures["per_second"].items() if name not in RIVALS}
    for policy, kinds in ours.items():
        plan.say(f"cache, {policy}: " + ", ".join(f"{kind} {rate['median']:,.0f}/s" for kind, rate in kinds.items()))
    return figures


def protection(plan: Plan) -> Figures:
    """What each stage of a call costs, and what settings add to it or take off."""
    figures = in_a_process(plan, "protection", plan.rounds * 15, 40 if plan.is_short else 300)
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


def in_a_process(plan: Plan, module: str, *arguments: object, environment: Mapping[str, str] | None = None) -> Figures:
    """What a module of ours prints as JSON, in a process that does nothing else."""
    argv = [sys.executable, "-m", f"bench.{module}", *map(str, arguments)]
    limit = 120 + 4 * plan.rounds * plan.seconds
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


def take_turns(plan: Plan, servers: Sequence[Server], work: Work, title: str) -> Rounds:
    """The same work for every server, round after round."""
    runs: dict[str, list[Run]] = {server.name: [] for server in servers}
    calls = {server.name: _calls_in(server, work, plan.seconds) for server in servers}
    for turn in range(plan.rounds):
        for server in rotated(servers, turn):
            runs[server.name].append(server.run(work, calls[server.name]))
        rates = ", ".join(f"{name} {done[-1].rate:,.0f}/s" for name, done in runs.items())
        plan.say(f"{title}, round {turn + 1} of {plan.rounds}: {rates}")
    return runs


def _calls_in(server: Server, work: Work, seconds: float) -> int:
    """About how many calls the server answers in so many seconds; finding out warms it up."""
    calls = work.in_flight
    for _ in range(20):
        run = server.run(work, min(calls, work.most_calls))
        if run.seconds >= seconds / 4 or calls >= work.most_calls:
            break
        calls *= 4
    return max(2, work.in_flight, min(int(run.rate * seconds), work.most_calls))  # Fewer have no percentiles.


def _compared(rounds: Rounds) -> Figures:
    return {
        "servers": {name: figures_of(runs) for name, runs in rounds.items()},
        "ratios": ratios_of(rounds, DRAGOMAN, rate_of),
    }
