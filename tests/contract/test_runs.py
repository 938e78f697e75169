"""The contract of `Runs`, and of what `LedgerAdmin` does with runs, for every engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from dragoman.agents.ledger import LARGE_RESULT, PARKED, EntryStatus, LedgerAdmin, Query
from dragoman.errors import LeaseLost, RequestConflict
from dragoman.tasks.port import (
    MOST_ATTEMPTS,
    Answered,
    Begin,
    Cancelled,
    NewRun,
    Note,
    Released,
    Run,
    RunQuery,
    Runs,
    StoredQuestion,
    encoded_arguments,
)
from tests.contract.engines import opened_runs
from tests.contract.run_histories import RunHistorian, compare_runs, run_histories
from tests.contract.run_model import RunsModel
from tests.support.run_entries import UNKNOWN, ended, keyed, question, stored, task


@pytest.fixture
async def both(engine: str, tmp_path: Path) -> AsyncIterator[tuple[Runs, LedgerAdmin]]:
    async with opened_runs(engine, tmp_path) as opened:
        yield opened
        assert await opened[1].verify() == []  # Whatever a test does.


@pytest.fixture
def runs(both: tuple[Runs, LedgerAdmin]) -> Runs:
    return both[0]


@pytest.fixture
def admin(both: tuple[Runs, LedgerAdmin]) -> LedgerAdmin:
    return both[1]


async def test_a_run_is_kept_as_it_was_given(runs: Runs) -> None:
    added = await runs.add(keyed())
    assert added == Run(
        number=added.number,
        owner="ada",
        tool="pay",
        request_id="k",
        arguments=b'{"amount":1}',
        status=EntryStatus.RUNNING,
        created_at=1.0,
        updated_at=1.0,
        expires_at=101.0,
        correlation_id="c",
        caller=b'{"name":"ada"}',
        fence=1,
        attempts=1,
        is_repeatable=False,
        questions=added.questions,
        is_new=True,
        is_held=True,
    )
    assert list(added.questions) == []
    found = await runs.find(owner="ada", request_id="k")
    assert found is not None
    assert replace(found, questions=()) == replace(added, is_new=False, questions=())
    assert await runs.find(owner="bob", request_id="k") is None
    assert await runs.find(owner="ada", request_id="other") is None
    assert await runs.find(task_id="k") is None


async def test_a_task_waits_until_it_is_begun_and_has_the_answers_that_were_given_before(runs: Runs) -> None:
    before = StoredQuestion(key="question-1", digest="name?", request=b"{}", answer=b'{"action":"accept"}')
    new = task(capabilities=b'{"elicitation":{}}', answers=[before])
    added = await runs.add(new)
    assert (added.status, added.fence, added.attempts, added.is_held) == ("waiting", 0, 0, False)
    assert (added.task_id, added.capabilities, list(added.questions)) == ("t", b'{"elicitation":{}}', [before])
    found = await runs.find(task_id="t")
    assert found is not None
    assert (found.number, list(found.questions)) == (added.number, [before])
    begun = await runs.change(Begin(added.number, 2.0))
    assert (begun.status, begun.fence, begun.attempts, begun.is_held) == ("running", 1, 1, True)
    assert (begun.created_at, begun.updated_at, list(begun.questions)) == (1.0, 2.0, [before])
    with pytest.raises(LeaseLost):
        await runs.change(Begin(added.number, 3.0))


async def test_a_task_that_begins_at_once_has_the_answers_that_were_given_before(runs: Runs) -> None:
    before = StoredQuestion(key="question-1", digest="name?", request=b"{}", answer=b"{}")
    added = await runs.add(task(begins=True, answers=[before]))
    assert (added.status, list(added.questions), list(added.pending)) == ("running", [before], [])
    asked = await runs.change(question(added, "age?"))
    assert [each.key for each in asked.questions] == ["question-1", "question-2"]


async def test_the_same_request_is_stored_once(runs: Runs) -> None:
    added = await asyncio.gather(*(runs.add(keyed(message_id=f"m{number}", at=number)) for number in range(20)))
    assert [each.is_new for each in added] == [True] + [False] * 19
    assert {(each.number, each.created_at, each.attempts) for each in added} == {(added[0].number, 0.0, 1)}
    await runs.change(ended(added[0]))
    again = await runs.add(keyed(message_id="later"))
    assert (again.is_new, again.status, again.result) == (False, "completed", b"1")
    assert [each.number for each in await runs.page(RunQuery(tasks_only=False))] == [again.number]


async def test_storing_a_request_again_tells_all_that_finding_it_does(runs: Runs) -> None:
    for new in (keyed("runs"), keyed("ended"), task("waits", key="waits"), task("asks", key="asks", begins=True)):
        added = await runs.add(new)
        if new.request_id == "ended":
            await runs.change(ended(added))
        if new.request_id == "asks":
            await runs.change(question(added))
        assert await runs.add(replace(new, message_id="again", task_id=None)) == await stored(runs, added)


@pytest.mark.parametrize("other", [{"arguments": b'{"amount":2}'}, {"tool": "refund"}], ids=["arguments", "tool"])
async def test_the_same_request_id_for_something_else_is_a_conflict(runs: Runs, other: dict[str, Any]) -> None:
    added = await runs.add(keyed())
    for _ in range(2):
        with pytest.raises(RequestConflict):
            await runs.add(keyed(**other))
        if added.is_open:
            added = await runs.change(ended(added))
    assert (await stored(runs, added)).arguments == b'{"amount":1}'


async def test_each_owner_has_request_ids_of_its_own(runs: Runs) -> None:
    added = [await runs.add(keyed(owner=owner, arguments=owner.encode())) for owner in ("ada", "bob")]
    assert [each.is_new for each in added] == [True, True]
    assert [(await stored(runs, each)).arguments for each in added] == [b"ada", b"bob"]


def test_arguments_are_equal_whatever_the_order_of_their_keys() -> None:
    assert encoded_arguments({"b": {"y": 1, "x": 2}, "a": [1]}) == encoded_arguments({"a": [1], "b": {"x": 2, "y": 1}})
    assert encoded_arguments({"a": 1}) != encoded_arguments({"a": 1.5})


@pytest.mark.parametrize("change", ["note", "question", "end", "release"])
async def test_what_a_holder_says_after_another_has_taken_over_is_refused(runs: Runs, change: str) -> None:
    old = await runs.add(task(begins=True))
    await runs.change(Released(old.number, old.fence, 2.0))
    stale: dict[str, Any] = {
        "note": Note(old.number, old.fence, 9.0, "late", b"{}"),
        "question": question(old, at=9.0),
        "end": ended(old, b'"late"', at=9.0),
        "release": Released(old.number, old.fence, 9.0),
    }
    if change != "end":  # Nobody holds it. An end counts: see below.
        with pytest.raises(LeaseLost):
            await runs.change(stale[change])
    new = await runs.change(Begin(old.number, 3.0))
    assert (new.fence, new.attempts) == (old.fence + 1, 1)
    with pytest.raises(LeaseLost):
        await runs.change(stale[change])
    assert replace(await stored(runs, new), questions=()) == replace(new, questions=())
    assert list((await stored(runs, new)).questions) == []
    assert (await runs.change(ended(new))).status == "completed"


@pytest.mark.parametrize("is_repeatable", [True, False], ids=["waits", "unknown"])
@pytest.mark.parametrize("made", [task, keyed])
async def test_a_late_end_counts_while_nobody_has_begun_the_run_again(
    runs: Runs, made: Callable[..., NewRun], is_repeatable: bool
) -> None:
    run = await runs.add(made("r", begins=True, is_repeatable=is_repeatable))
    await runs.close(4.0, UNKNOWN)  # As a sweep does with the runs of a process that is lost.
    lost = await stored(runs, run)
    assert (lost.status, lost.fence, lost.is_held) == ("waiting" if is_repeatable else "unknown", 1, False)
    with pytest.raises(LeaseLost):
        await runs.change(ended(run, b'"other"', fence=run.fence + 1))
    done = await runs.change(ended(run, b'"late"', at=9.0))
    assert (done.status, done.error, done.ended_at, done.expires_at) == ("completed", None, 9.0, max(109.0, 104.0))
    after = await stored(runs, run)
    assert after.result == b'"late"'
    for late in (ended(run, b'"later"'), Begin(run.number, 10.0)):
        with pytest.raises(LeaseLost):
            await runs.change(late)
    assert await stored(runs, run) == after


async def test_a_call_whose_process_was_lost_waits_for_its_repeat(runs: Runs, admin: LedgerAdmin) -> None:
    run = await runs.add(keyed(is_repeatable=True, expires_at=20.0))
    assert not run.waits_for_repeat
    await runs.close(4.0, UNKNOWN)
    repeat = await runs.add(keyed(message_id="later", is_repeatable=True, expires_at=99.0))
    assert (repeat.number, repeat.is_new, repeat.waits_for_repeat) == (run.number, False, True)
    begun = await runs.change(Begin(run.number, 5.0))
    assert (begun.fence, begun.attempts, begun.is_held, begun.expires_at) == (2, 2, True, 20.0)
    await runs.close(6.0, UNKNOWN)
    assert await runs.page(RunQuery()) == []  # It is no task.
    assert await admin.purge(19.9, 100) == 0
    assert await admin.purge(20.0, 100) == 1  # Nobody has repeated it while its key was remembered.
    assert await runs.find(owner="ada", request_id="k") is None


@pytest.mark.parametrize("number", [99])
async def test_a_run_that_is_gone_does_not_change(runs: Runs, number: int) -> None:
    for change in (
        Begin(number, 1.0),
        Note(number, 1, 1.0, None, b"{}"),
        Answered(number, 1.0, {"question-1": b"{}"}),
        Cancelled(number, 1.0, 100.0),
        Released(number, 1, 1.0),
    ):
        with pytest.raises(LeaseLost):
            await runs.change(change)


async def test_a_note_tells_how_far_a_run_is(runs: Runs) -> None:
    run = await runs.add(task(begins=True))
    noted = await runs.change(Note(run.number, run.fence, 2.0, "half", b'{"progress":1}'))
    assert (noted.message, noted.progress, noted.updated_at) == ("half", b'{"progress":1}', 2.0)
    noted = await runs.change(Note(run.number, run.fence, 3.0, None, b'{"progress":2}'))
    assert (noted.message, noted.progress, noted.updated_at) == (None, b'{"progress":2}', 3.0)


async def test_questions_are_answered_one_by_one_in_any_order(runs: Runs) -> None:
    run = await runs.add(task(begins=True))
    for words, place in (("name?", 0), ("age?", 0), ("name?", 1)):
        asked = await runs.change(question(run, words, place))
    keys = [each.key for each in asked.pending]
    assert len(set(keys)) == 3
    assert [(each.digest, each.place, each.answer) for each in asked.pending] == [
        ("name?", 0, None),
        ("age?", 0, None),
        ("name?", 1, None),
    ]
    answered = await runs.change(Answered(run.number, 4.0, {keys[1]: b"30"}))
    assert (answered.updated_at, [each.key for each in answered.pending]) == (4.0, [keys[0], keys[2]])
    answered = await runs.change(Answered(run.number, 5.0, {keys[0]: b'"Ada"', keys[2]: b'"Bob"'}))
    assert answered.pending == []
    assert [each.answer for each in answered.questions] == [b'"Ada"', b"30", b'"Bob"']


async def test_unknown_and_answered_keys_are_ignored(runs: Runs) -> None:
    run = await runs.add(task(begins=True))
    (asked,) = (await runs.change(question(run))).pending
    await runs.change(Answered(run.number, 3.0, {asked.key: b"1", "other": b"2"}))
    answered = await runs.change(Answered(run.number, 4.0, {asked.key: b"3"}))
    assert [each.answer for each in answered.questions] == [b"1"]


async def test_a_question_keeps_its_key_and_its_answer_for_the_run_that_asks_it_again(runs: Runs) -> None:
    run = await runs.add(task(begins=True))
    await runs.change(question(run, "name?"))
    await runs.change(question(run, "age?"))
    await runs.change(question(run, "gone?"))
    name, age, gone = (await stored(runs, run)).questions
    await runs.change(Answered(run.number, 3.0, {name.key: b'"Ada"'}))
    waiting = await runs.change(Released(run.number, run.fence, 4.0))
    assert (waiting.status, list(waiting.pending)) == ("waiting", [])
    again = await runs.change(Begin(run.number, 5.0))
    assert list(again.pending) == []  # This attempt has asked nothing yet.
    again = await runs.change(question(again, "age?"))
    assert [each.key for each in again.pending] == [age.key]
    again = await runs.change(question(again, "name?"))
    assert [each.key for each in again.pending] == [age.key]
    assert [each.answer for each in again.questions] == [b'"Ada"', None, None]
    for words, place in (("name?", 1), ("other?", 0)):
        again = await runs.change(question(again, words, place))
    new = [each.key for each in again.pending]
    assert new[0] == age.key
    assert len({name.key, age.key, gone.key, *new}) == 5


async def test_an_answer_that_comes_while_the_run_waits_to_begin_again_is_kept(runs: Runs) -> None:
    run = await runs.add(task(begins=True))
    (asked,) = (await runs.change(question(run))).pending
    await runs.change(Released(run.number, run.fence, 3.0))
    answered = await runs.change(Answered(run.number, 4.0, {asked.key: b"1"}))
    assert [each.answer for each in answered.questions] == [b"1"]


async def test_an_answer_to_an_earlier_attempt_is_kept_for_the_one_that_has_yet_to_ask(runs: Runs) -> None:
    run = await runs.add(task(begins=True))
    (asked,) = (await runs.change(question(run))).pending
    await runs.change(Released(run.number, run.fence, 3.0))
    again = await runs.change(Begin(run.number, 4.0))
    await runs.change(Answered(run.number, 5.0, {asked.key: b"1"}))
    again = await runs.change(question(again))
    assert (list(again.pending), [each.answer for each in again.questions]) == ([], [b"1"])


async def test_a_task_that_waits_is_cancelled_at_once(runs: Runs) -> None:
    run = await runs.add(task())
    cancelled = await runs.change(Cancelled(run.number, 4.0, 200.0))
    assert (cancelled.status, cancelled.is_cancelled, cancelled.updated_at) == ("cancelled", True, 4.0)
    assert (cancelled.ended_at, cancelled.expires_at) == (4.0, 200.0)
    with pytest.raises(LeaseLost):
        await runs.change(Begin(run.number, 5.0))


async def test_a_task_that_runs_is_only_marked_as_cancelled(runs: Runs) -> None:
    run = await runs.add(task(begins=True))
    marked = await runs.change(Cancelled(run.number, 4.0, 200.0))
    assert (marked.status, marked.is_cancelled, marked.ended_at, marked.fence) == ("running", True, None, run.fence)
    assert (marked.updated_at, marked.expires_at) == (4.0, 101.0)
    done = await runs.change(ended(run))  # It may come to something all the same.
    assert (done.status, done.is_cancelled) == ("completed", True)


@pytest.mark.parametrize(
    ("status", "result", "error"),
    [
        (EntryStatus.COMPLETED, b"1", None),
        (EntryStatus.COMPLETED, b'"' + b"x" * (LARGE_RESULT - 2) + b'"', None),
        (EntryStatus.COMPLETED, b'"' + b"x" * 5 * LARGE_RESULT + b'"', None),
        (EntryStatus.FAILED, None, b'{"code":-32603}'),
        (EntryStatus.CANCELLED, None, None),
    ],
    ids=["small", "at the limit", "large", "failed", "cancelled"],
)
async def test_a_run_that_has_ended_does_not_change(
    runs: Runs, admin: LedgerAdmin, status: EntryStatus, result: bytes | None, error: bytes | None
) -> None:
    run = await runs.add(task(begins=True))
    await runs.change(question(run))
    done = await runs.change(ended(run, result, at=5.0, status=status, error=error))
    assert (done.status, done.ended_at, done.updated_at, done.expires_at) == (status, 5.0, 5.0, 105.0)
    assert (done.is_held, list(done.pending), done.result) == (False, [], None)
    after = await stored(runs, run)
    assert (after.status, after.result, after.error) == (status, result, error)
    for change in (ended(run, b"2"), Released(run.number, 1, 9.0), Note(run.number, 1, 9.0, "late", b"{}")):
        with pytest.raises(LeaseLost):
            await runs.change(change)
    with pytest.raises(LeaseLost):
        await runs.change(Begin(run.number, 9.0))
    await runs.change(Answered(run.number, 9.0, {"question-1": b"1"}))
    await runs.change(Cancelled(run.number, 9.0, 900.0))
    assert await stored(runs, run) == after
    assert await admin.redrive(run.number, "m", 9.0, 99.0) is None


async def test_an_end_never_shortens_the_time_that_a_run_is_kept(runs: Runs) -> None:
    run = await runs.add(keyed(expires_at=500.0))
    assert (await runs.change(ended(run, at=5.0))).expires_at == 500.0


async def test_a_task_that_is_released_waits_again(runs: Runs) -> None:
    run = await runs.add(task(begins=True))
    waiting = await runs.change(Released(run.number, run.fence, 4.0))
    assert (waiting.status, waiting.is_held, waiting.updated_at) == ("waiting", False, 4.0)
    assert (waiting.fence, waiting.attempts) == (1, 0)  # Attempts are those that ended with their process.
    assert await runs.page(RunQuery(statuses=(EntryStatus.WAITING,))) == [replace(waiting, questions=())]


async def test_a_cancelled_task_that_is_released_ends_as_cancelled(runs: Runs) -> None:
    run = await runs.add(task(begins=True))
    await runs.change(Cancelled(run.number, 3.0, 200.0))
    released = await runs.change(Released(run.number, run.fence, 4.0))
    assert (released.status, released.ended_at, released.is_held) == ("cancelled", 4.0, False)
    assert released.expires_at == 104.0  # As long again as it was to be kept.


async def test_a_keyed_run_that_is_released_is_forgotten(runs: Runs, admin: LedgerAdmin) -> None:
    run = await runs.add(keyed())
    await runs.change(Released(run.number, run.fence, 4.0))
    assert await runs.find(owner="ada", request_id="k") is None
    assert await runs.page(RunQuery(tasks_only=False)) == []
    assert await admin.purge(1e9, 100) == 0
    with pytest.raises(LeaseLost):
        await runs.change(ended(run))
    again = await runs.add(keyed(message_id="again", arguments=b"{}"))  # Even with other arguments.
    assert (again.is_new, again.attempts) == (True, 1)
    assert again.number != run.number


async def test_pages_are_filtered_and_go_on_before_a_number(runs: Runs) -> None:
    made = [
        await runs.add(task("t0")),
        await runs.add(task("t1", owner="bob", begins=True)),
        await runs.add(keyed("k2", tool="refund")),
        await runs.add(task("t3", tool="refund", begins=True)),
        await runs.add(task("t4")),
    ]
    await runs.change(ended(made[3]))
    await runs.change(question(made[1]))

    async def ids(**query: Any) -> list[str]:
        return [each.request_id for each in await runs.page(RunQuery(**query))]

    assert await ids() == ["t4", "t3", "t1", "t0"]
    assert await ids(tasks_only=False) == ["t4", "t3", "k2", "t1", "t0"]
    assert await ids(oldest_first=True) == ["t0", "t1", "t3", "t4"]
    assert await ids(owner="bob") == ["t1"]
    assert await ids(owner="nobody") == []
    assert await ids(tool="refund") == ["t3"]
    assert await ids(tool="refund", tasks_only=False) == ["t3", "k2"]
    assert await ids(statuses=(EntryStatus.WAITING, EntryStatus.COMPLETED)) == ["t4", "t3", "t0"]
    assert await ids(statuses=()) == []
    assert await ids(limit=2) == ["t4", "t3"]
    assert await ids(limit=2, before=made[3].number) == ["t1", "t0"]
    assert await ids(limit=1, oldest_first=True, statuses=(EntryStatus.WAITING,)) == ["t0"]
    for each in await runs.page(RunQuery()):
        assert each.result is None
        assert bool(each.questions) <= (each.status is EntryStatus.RUNNING)


async def test_tasks_are_counted_by_status(runs: Runs) -> None:
    assert await runs.count() == {"byStatus": {}, "oldest": None}
    await runs.add(keyed("no task", at=0.5))
    done = await runs.add(task("t0", at=2.0, begins=True))
    await runs.add(task("t1", at=4.0))
    asking = await runs.add(task("t2", at=3.0, begins=True))
    await runs.add(task("t3", at=5.0, begins=True))
    await runs.change(ended(done))
    (asked,) = (await runs.change(question(asking))).pending
    assert await runs.count() == {
        "byStatus": {"completed": 1, "waiting": 1, "input_required": 1, "running": 1},
        "oldest": 3.0,
    }
    await runs.change(Answered(asking.number, 9.0, {asked.key: b"1"}))
    assert (await runs.count())["byStatus"] == {"completed": 1, "waiting": 1, "running": 2}


async def test_purging_deletes_runs_that_ended_and_expired_and_never_open_ones(runs: Runs, admin: LedgerAdmin) -> None:
    keys = await runs.add(keyed("k", expires_at=10.0))
    done = await runs.add(task("done", expires_at=10.0, begins=True))
    kept = await runs.add(task("kept", expires_at=10.0, begins=True))
    running = await runs.add(task("running", expires_at=2.0, begins=True))
    waiting = await runs.add(task("waiting", expires_at=2.0))
    open_key = await runs.add(keyed("open", expires_at=2.0))
    await runs.change(question(done))
    await runs.change(ended(keys, b'"' + b"x" * LARGE_RESULT + b'"', at=5.0, expires_at=20.0))
    await runs.change(ended(done, at=5.0, expires_at=20.0))
    await runs.change(ended(kept, at=5.0, expires_at=30.0))
    assert await admin.purge(19.9, 100) == 0
    assert await admin.purge(20.0, 100) == 4  # Two runs, and their results.
    assert await admin.purge(20.0, 100) == 0
    assert await runs.find(task_id="done") is None
    assert await runs.find(owner="ada", request_id="k") is None
    assert (await stored(runs, kept)).result == b"1"
    for each, status in ((running, "running"), (waiting, "waiting"), (open_key, "running")):
        assert (await stored(runs, each)).status == status
    again = await runs.add(task("done", message_id="again", begins=True))
    asked = await runs.change(question(again))
    assert (again.is_new, len(asked.questions), len(asked.pending)) == (True, 1, 1)  # Those of the first are gone.


async def test_closing_gives_up_what_this_process_has_begun(runs: Runs, admin: LedgerAdmin) -> None:
    made: dict[str, NewRun] = {
        "task": task("task", begins=True),
        "cancelled": task("cancelled", begins=True),
        "waits": task("waits"),
        "once": task("once", begins=True, is_repeatable=False),
        "key": keyed("key", is_repeatable=True),
        "key once": keyed("key once"),
        "done": keyed("done"),
    }
    added = {name: await runs.add(each) for name, each in made.items()}
    await runs.change(Cancelled(added["cancelled"].number, 3.0, 200.0))
    await runs.change(ended(added["done"]))
    await runs.close(10.0, UNKNOWN)
    left = {name: await runs.find(owner="ada", request_id=name) for name in made}
    assert {name: each.status.value for name, each in left.items() if each is not None} == {
        "task": "waiting",
        "cancelled": "cancelled",
        "waits": "waiting",
        "once": "unknown",
        "key once": "unknown",
        "key": "waiting",
        "done": "completed",
    }
    assert not any(each.is_held for each in left.values() if each is not None)
    for name in ("once", "key once"):
        unknown = await stored(runs, added[name])
        assert (unknown.error, unknown.result) == (UNKNOWN, None)
        assert (unknown.ended_at, unknown.expires_at) == (10.0, 110.0)
        with pytest.raises(LeaseLost):
            await runs.change(Begin(added[name].number, 11.0))
    again = await runs.change(Begin(added["task"].number, 11.0))
    assert (again.fence, again.is_held) == (2, True)
    with pytest.raises(LeaseLost):
        await runs.change(ended(added["task"]))  # With the fence from before.


async def test_a_run_that_ended_with_too_many_processes_is_unknown(runs: Runs) -> None:
    run = await runs.add(task())
    for attempt in range(1, MOST_ATTEMPTS + 1):
        begun = await runs.change(Begin(run.number, float(attempt)))
        assert (begun.attempts, begun.fence) == (attempt, attempt)
        await runs.close(attempt + 0.5, UNKNOWN)
    after = await stored(runs, run)
    assert (after.status, after.error, after.attempts) == ("unknown", UNKNOWN, MOST_ATTEMPTS)


async def test_sweeping_leaves_the_runs_of_this_process_alone(runs: Runs) -> None:
    run = await runs.add(keyed())
    assert await runs.sweep(1e9, UNKNOWN) == 0
    assert (await stored(runs, run)).is_held


async def test_runs_and_their_results_are_no_messages(runs: Runs, admin: LedgerAdmin) -> None:
    await runs.add(keyed())
    await runs.change(ended(await runs.add(keyed("done"))))
    unknown = ended(await runs.add(keyed("unknown")), None, status=EntryStatus.UNKNOWN, error=UNKNOWN)
    await runs.change(unknown)
    assert await admin.page(Query()) == await admin.page(Query(statuses=PARKED)) == []
    assert await admin.redrive(unknown.number, "again", 6.0, 7.0) is None
    figures = await admin.figures()
    assert (figures["byStatus"], figures["open"]) == ({}, {})


@pytest.mark.slow
@settings(deadline=None)
@given(history=run_histories)
def test_any_history_comes_to_the_same_as_in_a_plain_dictionary(engine: str, history: list[Any]) -> None:
    async def take() -> None:
        model = RunsModel()
        with TemporaryDirectory() as folder:
            async with opened_runs(engine, Path(folder)) as opened:
                await compare_runs(RunHistorian(*opened), RunHistorian(model, model), history)

    asyncio.run(take())
