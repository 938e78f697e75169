"""`python -m chaos`: kill servers a thousand times, or as often as it is told. Exits with 1 when something is wrong."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from pathlib import Path

from chaos.points import POINTS
from chaos.run import AT_RANDOM, Report, Run

OUT = Path(__file__).parent / "out"
_SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    report = asyncio.run(_run(options.kills, options.seed))
    (OUT / "report.json").write_text(json.dumps(vars(report), indent=1) + "\n", "utf-8")
    print("\n".join(_lines(report)))
    if report.problems:
        more = len(report.problems) - _SHOWN
        shown = [*report.problems[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        print("\nFAILED:", *shown, sep="\n- ", file=sys.stderr)
        return 1
    return 0


async def _run(kills: int, seed: int) -> Report:
    return await Run(kills, OUT, seed).run()


def _lines(report: Report) -> list[str]:
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(report.statuses.items()))
    points = [f"  {report.kills[point]:5,}  {point}" for point in (*POINTS, AT_RANDOM)]
    return [
        f"{report.seconds:,.0f} s, {report.count:,} kills in {report.rounds} rounds",
        f"{report.takeovers:,} agents taken over; {report.stops:,} servers ended by SIGTERM",
        f"{report.requests:,} requests, which were sent again {report.asked_again:,} times",
        f"{report.messages:,} messages: {statuses}",
        "kills by point:",
        *points,
    ]


if __name__ == "__main__":
    sys.exit(main())
