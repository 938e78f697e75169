"""`python -m soak`: mixed load for an hour, or as long as it is told. Exits with 1 when something is wrong."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from soak.run import Plan, Run

OUT = Path(__file__).parent / "out"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--share", type=float, default=0.25, help="of one core, for the client and the servers together"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    report = asyncio.run(_run(Plan(options.minutes * 60, OUT, options.share, options.seed)))
    (OUT / "report.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print("\n".join(_lines(report)))
    if report["problems"]:
        print("\nFAILED:", *report["problems"], sep="\n- ", file=sys.stderr)
        return 1
    for log in OUT.glob("*.log"):
        log.unlink()
    return 0


async def _run(plan: Plan) -> dict[str, Any]:
    return await Run(plan).run()


def _lines(report: dict[str, Any]) -> list[str]:
    records = ", ".join(f"{count:,} {outcome}" for outcome, count in report["records"].items())
    lines = [
        f"{report['seconds']:,.0f} s, {sum(report['scenes'].values()):,} scenes, {report['calls']:,} calls, "
        f"{report['refused_for_want_of_a_slot']:,} of them refused for want of a slot",
        f"records: {records}",
    ]
    for name, server in report["servers"].items():
        grown, last = server["growth"], server["samples"][-1]
        lines.append(
            f"{name}: {last['memory'] / 1e6:,.1f} MB ({grown['memory'] / 1e6:+,.1f}), {last['descriptors']} descriptors"
            f" ({grown['descriptors']:+,.0f}), {last['threads']} threads ({grown['threads']:+,.0f})"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
