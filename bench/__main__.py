"""`python -m bench`: everything side by side in one go. Exits with 1 when a count is wrong, never for being slow."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import measure, report
from bench.bridge import bridge
from bench.cache import HAS_CACHETOOLS
from bench.over_http import over_http
from bench.page import page
from bench.process import BenchError
from bench.rounds import Figures

OUT = measure.ROOT / "bench" / "out"
DOCS = measure.ROOT / "docs"
SECTIONS: tuple[Callable[[measure.Plan], Figures], ...] = (
    measure.side_by_side,
    measure.many_tools,
    measure.start_up,
    measure.memory,
    measure.growth,
    measure.in_process,
    measure.cache,
    measure.protection,
    measure.memories,
    over_http,
    bridge,
    page,
)


def main() -> int:
    options = _options()
    plan = measure.plan_for(short=options.short, rounds=options.rounds)
    if not measure.HAS_FASTMCP:
        print("FastMCP is not installed here (requirements-bench.lock has it); it is left out.", file=sys.stderr)
    if not HAS_CACHETOOLS:
        print("cachetools is not installed here (requirements-bench.lock has it); it is left out.", file=sys.stderr)
    started, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        try:
            results = _measure(replace(plan, folder=Path(folder)))
        except BenchError as error:
            print(f"\nFAILED: {error}", file=sys.stderr)
            return 1
    results = {"about": _about(plan.rounds, options.short, time.monotonic() - started, load), **results}
    results["targets"] = [target.facts() for target in report.targets(results)]
    _write(results, in_docs=not options.short)
    print(report.text(results))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a minute or so, to see that it still runs")
    parser.add_argument("--rounds", type=int, help="turns that each server gets [7; short: 2]")
    return parser.parse_args()


def _measure(plan: measure.Plan) -> dict[str, Any]:
    started = time.monotonic()
    results: dict[str, Any] = {}
    for number, section in enumerate(SECTIONS, 1):

        def say(words: str, number: int = number) -> None:
            elapsed = time.monotonic() - started
            print(f"[{number}/{len(SECTIONS)} {elapsed:4.0f} s] {words}", file=sys.stderr, flush=True)

        if hasattr(os, "sync"):
            os.sync()  # What one section has written is not to be flushed while the next is measured.
        results[section.__name__] = section(replace(plan, say=say))
    return results


def _about(rounds: int, short: bool, seconds: float, load: float) -> dict[str, Any]:
    alternatives = {"fastmcp": measure.HAS_FASTMCP, "cachetools": HAS_CACHETOOLS}
    packages = ("dragoman", "mcp", "msgspec", "uvicorn", *(name for name, is_there in alternatives.items() if is_there))
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load_before": load,
        "rounds": rounds,
        "short": short,
        "seconds": round(seconds),
        "versions": {package: version(package) for package in packages},
    }


def _write(results: dict[str, Any], *, in_docs: bool) -> None:
    data = json.dumps(_rounded(results), indent=2) + "\n"
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "results.json").write_text(data)
    if in_docs:
        (DOCS / "bench.json").write_text(data)
        (DOCS / "bench.svg").write_text(report.chart(results))


def _rounded(value: Any) -> Any:
    """Four digits are more than this machine can tell apart."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
