"""`python -m chaos`: kill servers with agents, with tasks, with actions and with deliveries, as often as it is told.

Meanwhile all of them sleep now and then, and disks fail. Then files of the database are moved away, replaced and
deleted under servers.

Exits with 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from chaos.losses import run_losses
from chaos.rounds import AT_RANDOM, Report, Round, Run
from chaos.run import AgentRound
from chaos.run_actions import ActionRound
from chaos.run_deliveries import DeliveryRound
from chaos.run_tasks import TaskRound

OUT = Path(__file__).parent / "out"
_SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="of servers with agents [1000]")
    parser.add_argument("--task-kills", type=int, default=200, help="of servers with tasks [200]")
    parser.add_argument("--action-kills", type=int, default=100, help="of servers with actions [100]")
    parser.add_argument("--delivery-kills", type=int, default=100, help="of servers with accepted requests [100]")
    parser.add_argument("--losses", type=int, default=27, help="of files of the database [27]")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    agents = _run("agents", AgentRound, options.kills, options.seed)
    tasks = _run("tasks", TaskRound, options.task_kills, options.seed)
    actions = _run("actions", ActionRound, options.action_kills, options.seed)
    deliveries = _run("deliveries", DeliveryRound, options.delivery_kills, options.seed)
    losses = asyncio.run(run_losses(options.losses, OUT / "losses", options.seed))
    print(f"losses: {losses.acknowledged:,} of {losses.calls:,} calls acknowledged", *losses.losses.items(), sep="\n  ")
    problems = [*agents.problems, *tasks.problems, *actions.problems, *deliveries.problems, *losses.problems]
    if problems:
        more = len(problems) - _SHOWN
        shown = [*problems[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        print("\nFAILED:", *shown, sep="\n- ", file=sys.stderr)
        return 1
    return 0


def _run(name: str, kind: type[Round], kills: int, seed: int) -> Report:
    async def run() -> Report:
        return await Run(kind, kills, OUT / name, seed).run()

    report = asyncio.run(run())
    (OUT / f"{name}.json").write_text(json.dumps(vars(report), indent=1) + "\n", "utf-8")
    print(f"{name}:", *_lines(report, kind.points), sep="\n  ", flush=True)
    return report


def _lines(report: Report, points: Sequence[str]) -> list[str]:
    statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(report.statuses.items()))
    hits = [f"  {report.kills[point]:5,}  {point}" for point in (*points, AT_RANDOM)]
    return [
        f"{report.seconds:,.0f} s, {report.count:,} kills in {report.rounds} rounds",
        f"{report.takeovers:,} takeovers; {report.stops:,} servers ended by SIGTERM; {report.sleeps:,} sleeps of all",
        f"{report.commit_errors:,} commits that failed",
        f"{report.requests:,} requests, which were sent again {report.asked_again:,} times",
        f"{report.messages:,} kept: {statuses}",
        "kills by point:",
        *hits,
    ]


if __name__ == "__main__":
    sys.exit(main())
