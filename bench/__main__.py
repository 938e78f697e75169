"""`python -m bench [SECTION ...]`: servers side by side. Exits with 1 when a count is wrong, never for being slow.

A run of all sections with enough rounds is kept in docs/bench-runs, and the documents are written from all kept runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import measure, published, report
from bench.actions import actions
from bench.agents import agents
from bench.artifacts import artifacts
from bench.bridge import bridge
from bench.cache import HAS_CACHETOOLS
from bench.go import go
from bench.idle import idle
from bench.later import later
from bench.lock import lock
from bench.over_http import over_http
from bench.page import page
from bench.process import BenchError
from bench.queries import queries
from bench.rounds import ENOUGH_ROUNDS, Figures, Plan, plan_for
from bench.starts import starts
from bench.tasks import tasks

OUT = measure.ROOT / "bench" / "out"
_ALL: tuple[Callable[[Plan], Figures], ...] = (
    measure.over_stdio,
    measure.many_tools,
    measure.in_process,
    over_http,
    measure.start_up,
    starts,
    measure.memory,
    measure.growth,
    idle,
    bridge,
    go,
    measure.cache,
    measure.protection,
    measure.memories,
    agents,
    tasks,
    actions,
    later,
    artifacts,
    queries,
    lock,
    page,
)
SECTIONS = {section.__name__: section for section in _ALL}


def main() -> int:
    options = _options()
    plan = plan_for(short=options.short, rounds=options.rounds)
    for name, is_here in (("FastMCP", measure.HAS_FASTMCP), ("cachetools", HAS_CACHETOOLS)):
        if not is_here:
            print(f"{name} is not installed here (requirements-bench.lock has it); it is left out.", file=sys.stderr)
    now, started, load = datetime.now(UTC), time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        try:
            results = measured(replace(plan, folder=Path(folder)), options.sections or [*SECTIONS])
        except BenchError as error:
            print(f"\nFAILED: {error}", file=sys.stderr)
            return 1
    results = {"about": about(now, plan, time.monotonic() - started, load), **results}
    name = f"{now:%Y-%m-%d-%H%M}-py{'.'.join(platform.python_version_tuple()[:2])}.json"
    _write(OUT / name, results)
    print(report.text(results))
    if not options.short and not options.sections and plan.rounds >= ENOUGH_ROUNDS:
        _write(published.RUNS / name, published.kept(results))
        published.write()
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)} [all of them]")
    parser.add_argument("--short", action="store_true", help="a minute or two, to see that it still runs")
    parser.add_argument("--rounds", type=int, help=f"turns that each server gets [{ENOUGH_ROUNDS}; short: 2]")
    options = parser.parse_args()
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    return options


def measured(plan: Plan, names: Sequence[str]) -> dict[str, Any]:
    """The figures of these sections."""
    started = time.monotonic()
    results: dict[str, Any] = {}
    for place, name in enumerate(names, 1):

        def say(words: str, place: int = place) -> None:
            elapsed = time.monotonic() - started
            print(f"[{place}/{len(names)} {elapsed:4.0f} s] {words}", file=sys.stderr, flush=True)

        if hasattr(os, "sync"):
            os.sync()  # What one section has written is not to be flushed while the next is measured.
        results[name] = SECTIONS[name](replace(plan, say=say))
    return results


def about(now: datetime, plan: Plan, seconds: float, load: float) -> dict[str, Any]:
    """The conditions of a run."""
    alternatives = {"fastmcp": measure.HAS_FASTMCP, "cachetools": HAS_CACHETOOLS}
    packages = ("dragoman", "mcp", "msgspec", "uvicorn", *(name for name, is_there in alternatives.items() if is_there))
    return {
        "date": now.strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load_before": load,
        "rounds": plan.rounds,
        "short": plan.is_short,
        "seconds": round(seconds),
        "versions": {package: version(package) for package in packages},
    }


def _write(path: Path, results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_rounded(results), indent=1) + "\n", "utf-8")


def _rounded(value: Any) -> Any:
    """Four digits are more than a machine can tell apart."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
