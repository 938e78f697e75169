"""Rounds of servers with tasks and idempotency keys, which are killed while they are asked."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from chaos.http_served import HttpServed
from chaos.rounds import LANES, Round
from chaos.run import opened_database
from chaos.servers import SERVED, SPACE, Place, Served
from chaos.task_checks import TasksFound, problems_with_tasks
from chaos.task_points import TASK_POINTS
from chaos.tasks import KeyedCall, TaskLoad, Watched
from dragoman.adapters.sqlite_ledger_admin import SqliteLedgerAdmin
from dragoman.adapters.sqlite_runs import SqliteRuns
from dragoman.agents.ledger import OPEN
from dragoman.tasks.port import Run, RunQuery

TASKS_FILE = SERVED / "tasks.py"
_SETTINGS = {"tasks.max_concurrent": 4, "tasks.poll_interval_ms": 20}
"""With so few slots, tasks have to wait, and are begun later."""
_QUIET_LIMIT = 60.0
_TAKEN_OVER = "runs were taken over from a process that has ended"


class TaskRound(Round):
    """One server at a time, and in the next round two."""

    points = TASK_POINTS
    sizes = (1, 2)
    _load: TaskLoad

    @classmethod
    def place_in(cls, folder: Path) -> Place:
        return Place(folder, _SETTINGS, TASKS_FILE)

    def make_load(self) -> TaskLoad:
        return TaskLoad(self._live, self._chance)

    async def serve(self, *arguments: str) -> Served:
        return await HttpServed.start(self._place, *arguments)

    def times_of(self, point: str) -> int:
        # A server that is alone takes over once, when it starts.
        return 1 if point.startswith("takeover") else super().times_of(point)

    async def settle(self, last: Served) -> None:
        await until_no_run_is_open(self._place)
        load = self._load

        async def again(calls: Sequence[KeyedCall], tasks: Sequence[Watched]) -> None:
            for call in calls:
                if not await load.call_once(call):
                    load.problems.append(f"call {call.item} of {call.tool} has no outcome any more")
            for task in tasks:
                if task.key is not None and not await load.create_once(task):
                    load.problems.append(f"task {task.item} of {task.tool} cannot be created again")
                if task.ids and not await load.look_once(task):
                    load.problems.append(f"task {task.item} of {task.tool} cannot be read any more")

        await asyncio.gather(*(again(load.calls[lane::LANES], load.tasks[lane::LANES]) for lane in range(LANES)))

    async def check(self) -> None:
        report = self._report
        found, runs = await tasks_found_in(self._place, self._load.calls, self._load.tasks)
        report.requests += len(self._load.calls) + len(self._load.tasks)
        report.messages += len(runs)
        report.statuses.update(each.status.value for each in runs)
        report.takeovers += sum(server.logged()[_TAKEN_OVER] for server in self._all)
        report.problems += problems_with_tasks(found)


async def until_no_run_is_open(place: Place) -> None:
    """Return then, or after a minute: tasks whose id was lost end, too."""
    async with opened_database(place) as database:
        runs, deadline = SqliteRuns(database, SPACE), time.monotonic() + _QUIET_LIMIT
        is_open = RunQuery(statuses=OPEN, tasks_only=False, limit=1)
        while await runs.page(is_open) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def tasks_found_in(
    place: Place, calls: Sequence[KeyedCall], tasks: Sequence[Watched]
) -> tuple[TasksFound, list[Run]]:
    """What clients were told, beside the content of the ledger and of the file outside of it; and the runs."""
    async with opened_database(place) as database:
        runs = await SqliteRuns(database, SPACE).page(RunQuery(tasks_only=False, limit=1 << 30))
        contradictions = await SqliteLedgerAdmin(database, SPACE).verify()
    acted: dict[str, list[str]] = defaultdict(list)
    for line in place.outside.read_text("utf-8").splitlines() if place.outside.exists() else ():
        token, _, item = line.partition(" ")
        acted[item].append(token)
    attempts = {run.task_id or run.request_id: run.attempts for run in runs}
    still_open = [run.number for run in runs if run.is_open]
    return TasksFound(calls, tasks, acted, attempts, still_open, contradictions), runs
