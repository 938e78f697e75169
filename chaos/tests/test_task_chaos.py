"""The checks of tasks and keys pass for a healthy ledger, and fail for each fault that they are there for."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.http_served import HttpServed
from chaos.rounds import Run
from chaos.run import opened_database
from chaos.run_tasks import TASKS_FILE, TaskRound, tasks_found_in
from chaos.servers import SPACE, Place, Served
from chaos.task_checks import TasksFound, problems_with_tasks
from chaos.task_points import TASK_POINTS, PointRuns
from chaos.tasks import GONE, KeyedCall, Sight, TaskLoad, Watched, final_answer, sight_in
from dragoman.adapters.sqlite_ledger_process import SqliteProcess
from dragoman.adapters.sqlite_runs import SqliteRuns
from dragoman.agents.ledger import EntryStatus
from dragoman.tasks.port import Answered, Begin, Ended, NewRun, QuestionAsked
from tests.support.waiting import PATIENCE

UNKNOWN = {"outcome": "UNKNOWN", "retryable": False}
WORKING, DONE = Sight("working"), Sight("completed", "token 1")
FAILED = Sight("failed", {"code": -32603, "data": {"outcome": "UNKNOWN"}})


def healthy() -> TasksFound:
    return TasksFound(
        calls=[
            KeyedCall("key 5", "once", "item 5", ["token 5", "token 5"]),
            KeyedCall("key 6", "once", "item 6", [UNKNOWN]),
            KeyedCall("key 7", "again", "item 7", ["token 7"]),
        ],
        tasks=[
            Watched("key 1", "once", "item 1", ["id 1", "id 1"], [WORKING, DONE, DONE]),
            Watched("key 2", "once", "item 2", ["id 2"], [FAILED]),
            Watched(
                "key 3",
                "asks",
                "item 3",
                ["id 3"],
                [Sight("input_required", asked=("question-1",)), "question-1", WORKING, Sight("completed", "token 3")],
            ),
            Watched(None, "again", "item 4"),
        ],
        acted={
            "item 1": ["token 1"],
            "item 2": ["token 2"],
            "item 3": ["token 0", "token 3"],
            "item 4": ["token 4"],
            "item 5": ["token 5"],
            "item 7": ["token 8", "token 7"],
        },
        attempts={"id 1": 1, "id 2": 1, "id 3": 2},
    )


def with_task(number: int, **facts: Any) -> Callable[[TasksFound], TasksFound]:
    def change(found: TasksFound) -> TasksFound:
        tasks = list(found.tasks)
        tasks[number - 1] = replace(tasks[number - 1], **facts)
        return replace(found, tasks=tasks)

    return change


def with_answers(place: int, *answers: Any) -> Callable[[TasksFound], TasksFound]:
    def change(found: TasksFound) -> TasksFound:
        calls = list(found.calls)
        calls[place] = replace(calls[place], answers=list(answers))
        return replace(found, calls=calls)

    return change


def with_acted(number: int, *tokens: str) -> Callable[[TasksFound], TasksFound]:
    return lambda found: replace(found, acted={**found.acted, f"item {number}": list(tokens)})


def test_healthy_tasks_have_no_problems() -> None:
    assert problems_with_tasks(healthy()) == []


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (lambda found: replace(found, contradictions=["a gap"]), "a gap"),
        (lambda found: replace(found, still_open=[7]), "run 7 is still open"),
        (with_task(1, seen=[WORKING, Sight(GONE), DONE]), "task item 1 of once has vanished"),
        (
            with_task(1, seen=[DONE, WORKING, DONE]),
            "task item 1 of once was completed (token 1), and then working (None)",
        ),
        (
            with_task(1, seen=[DONE, Sight("completed", "token 2")]),
            "task item 1 of once was completed (token 1), and then completed (token 2)",
        ),
        (with_task(1, seen=[WORKING]), "task item 1 of once has not ended"),
        (with_task(1, seen=[]), "task item 1 of once has not ended"),
        (with_task(1, seen=[Sight("cancelled")]), "task item 1 of once was cancelled by nobody"),
        (with_task(1, ids=["id 1", "id 9"]), "task item 1 of once was created 2 times"),
        (
            with_task(1, seen=[Sight("failed", {"data": {"reason": "x"}})]),
            "task item 1 of once has failed: {'reason': 'x'}",
        ),
        (with_task(3, seen=[FAILED]), "task item 3 of asks is unknown, though it may be repeated"),
        (
            with_task(3, seen=["question-1", Sight("input_required", asked=("question-1",)), DONE]),
            "task item 3 of asks asks question-1 again, which was answered",
        ),
        (with_acted(1, "token 1", "token 9"), "task item 1 of once has acted 2 times"),
        (with_acted(2, "token 2", "token 9"), "task item 2 of once has acted 2 times"),
        (with_acted(3, "token 0"), "task item 3 of asks came to token 3, and has not acted"),
        (with_acted(5, "token 5", "token 9"), "call item 5 of once has acted 2 times"),
        (with_acted(5), "call item 5 of once came to token 5, and has not acted"),
        (with_acted(9, "token 9"), "nobody asked for item 9"),
        (with_answers(0), "call item 5 of once has no answer"),
        (with_answers(0, "token 5", "token 9"), "call item 5 of once has different answers: ['token 5', 'token 9']"),
        (with_answers(0, UNKNOWN, "token 5"), f"call item 5 of once has different answers: [{UNKNOWN}, 'token 5']"),
        (with_answers(2, UNKNOWN), "call item 7 of again is unknown, though it may be repeated"),
    ],
)
def test_a_fault_is_found(break_it: Callable[[TasksFound], TasksFound], problem: str) -> None:
    assert problem in problems_with_tasks(break_it(healthy()))


def test_a_run_with_which_too_many_processes_have_ended_may_be_unknown() -> None:
    found = with_task(3, seen=[FAILED])(healthy())
    assert problems_with_tasks(replace(found, attempts={"id 3": 5})) == []


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        ('{"code":"INTERNAL","details":{"outcome":"UNKNOWN","retryable":false}}', UNKNOWN),
        ('{"code":"RESOURCE_EXHAUSTED","details":{"reason":"storage_failed","retryable":true}}', None),
        ('{"code":"ABORTED"}', None),
    ],
)
def test_a_refusal_is_not_taken_for_an_outcome(error: str, answer: Any) -> None:
    assert final_answer({"result": {"isError": True, "content": [{"type": "text", "text": error}]}}) == answer


def test_a_server_that_cannot_look_has_not_lost_the_task() -> None:
    assert sight_in({"error": {"code": -32603, "message": "The server's storage failed"}}) is None
    assert sight_in({"error": {"code": -32602, "message": "there is no such task"}}) == Sight(GONE)


def run_of(number: int, **facts: Any) -> NewRun:
    return NewRun(
        message_id=f"message {number}",
        owner="client:ada",
        tool="once",
        request_id=f"once {number}",
        arguments=b"{}",
        at=1.0,
        expires_at=9e9,
        correlation_id="",
        caller=None,
        is_repeatable=True,
        task_id=f"task {number}",
        **facts,
    )


async def test_the_life_of_runs_passes_every_point_but_those_of_handlers(tmp_path: Path) -> None:
    passed: list[str] = []
    async with opened_database(Place(tmp_path)) as database:
        runs = PointRuns(database, SPACE, passed.append)
        waiting = await runs.add(run_of(1, begins=False))
        run = await runs.change(Begin(waiting.number, 2.0))
        await runs.change(QuestionAsked(run.number, run.fence, 3.0, "words", 0, b'{"method":"elicitation/create"}'))
        await runs.change(Answered(run.number, 4.0, {"question-1": b"{}"}))
        end: dict[str, Any] = {"expires_at": 9e9, "status": EntryStatus.COMPLETED, "result": b"{}"}
        await runs.change(Ended(number=run.number, fence=run.fence, at=5.0, message_id="response", **end))
        ended = SqliteProcess(database)
        await SqliteRuns(database, SPACE, ended).add(run_of(2))
        (database.path.parent / "locks" / f"{ended.id}.lock").unlink()  # As when it is killed.
        assert await runs.sweep(6.0, b"{}") == 1
    assert set(passed) == {point for point in TASK_POINTS if not point.startswith("handler")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tools", "problems"), [("tasks.py", []), ("repeating_tasks.py", ["task item 1 of once has acted 2 times"])]
)
async def test_a_tool_that_is_wrongly_repeated_is_found(tmp_path: Path, tools: str, problems: list[str]) -> None:
    place = Place(tmp_path, target=TASKS_FILE.with_name(tools))
    task = Watched("key of sixteen characters", "once", "item 1")
    live: list[Served | None] = [await HttpServed.start(place, "--point", "handler ended")]
    load = TaskLoad(live, random.Random(1))
    async with asyncio.timeout(PATIENCE):
        while not await load.create_once(task):  # noqa: ASYNC110 - it has yet to listen
            await asyncio.sleep(0.02)
        assert live[0] is not None
        assert await live[0].ended() == -signal.SIGKILL
        second = live[0] = await HttpServed.start(place)
        while not task.has_ended:
            await load.look_once(task)
    assert await second.end(signal.SIGTERM) == 0
    found, _ = await tasks_found_in(place, [], [task])
    assert problems_with_tasks(found) == problems


@pytest.mark.slow
async def test_a_run_with_tasks_kills_as_often_as_it_is_told_and_finds_nothing(tmp_path: Path) -> None:
    report = await Run(TaskRound, 3, tmp_path, seed=1).run()
    assert (report.problems, report.count) == ([], 3)
    assert report.requests > 0
