"""Histories of runs, taken by an engine and a model that must come to the same."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.agents.ledger import EntryStatus, LedgerAdmin
from dragoman.tasks.port import Answered, Begin, Cancelled, Note, QuestionAsked, Released, Run, RunQuery, Runs
from tests.contract.run_model import RunsModel
from tests.support.run_entries import UNKNOWN, ended, keyed, task

places = st.integers(0, 4)
"""Which of the runs so far."""
fences = st.integers(-1, 0)
"""How far the fence of a change is off."""
names = st.sampled_from(["r1", "r2", "r3"])
steps = st.one_of(
    st.tuples(st.just("key"), names, st.sampled_from([b"1", b"2"]), st.booleans()),
    st.tuples(st.just("task"), names, st.booleans(), st.booleans()),
    st.tuples(st.just("begin"), places),
    st.tuples(st.just("note"), places, fences),
    st.tuples(st.just("ask"), places, fences, st.sampled_from(["name?", "age?"]), st.integers(0, 1)),
    st.tuples(st.just("answer"), places, st.integers(1, 3)),
    st.tuples(st.just("cancel"), places),
    st.tuples(st.just("end"), places, fences, st.sampled_from(["completed", "failed", "cancelled"])),
    st.tuples(st.just("release"), places, fences),
    st.tuples(st.just("purge"), st.sampled_from([10.0, 200.0])),
)
together = st.lists(steps, min_size=1, max_size=4) | st.just([("close",)])
run_histories = st.lists(together, max_size=10)


class RunHistorian:
    """Takes steps, and knows the runs that there are."""

    def __init__(self, runs: Runs | RunsModel, admin: LedgerAdmin | RunsModel) -> None:
        self.runs, self.admin = runs, admin
        self.known: list[Run] = []
        self.count = 0

    def begin_step(self, step: Any) -> Any:
        """What is to be awaited. It is asked for now, and may happen together with what is asked for next."""
        self.count += 1
        at = float(self.count)
        what, *told = step
        if what == "key":
            key, arguments, is_repeatable = told
            return self.runs.add(keyed(key, arguments=arguments, is_repeatable=is_repeatable, at=at))
        if what == "task":
            name, begins, is_repeatable = told
            return self.runs.add(task(f"{name} {self.count}", begins=begins, is_repeatable=is_repeatable, at=at))
        if what == "purge":
            return self.admin.purge(told[0], 100)
        if what == "close":
            return self.runs.close(at, UNKNOWN)
        if not self.known:
            return asyncio.sleep(0)
        place, *more = told
        return self.runs.change(self._change(what, self.known[place % len(self.known)], at, more))

    def _change(self, what: str, run: Run, at: float, told: list[Any]) -> Any:
        number, fence = run.number, run.fence + (told[0] if told else 0)
        match what:
            case "begin":
                return Begin(number, at)
            case "note":
                return Note(number, fence, at, f"at {at}", b"{}")
            case "ask":
                return QuestionAsked(number, fence, at, told[1], told[2], b"{}")
            case "answer":
                return Answered(number, at, {f"question-{told[0]}": b"%d" % at})
            case "cancel":
                return Cancelled(number, at, at + 100)
            case "end":
                status = EntryStatus(told[1])
                result = b'"%d"' % at if status is EntryStatus.COMPLETED else None
                return ended(run, result, at=at, status=status, fence=fence)
        return Released(number, fence, at)

    async def take(self, together: list[Any]) -> list[Any]:
        """Take steps at once; what came of each."""
        begun = [asyncio.ensure_future(_awaited(self.begin_step(step))) for step in together]
        outcomes = await asyncio.gather(*begun, return_exceptions=True)
        self.known = await self.runs.page(RunQuery(tasks_only=False, oldest_first=True))
        return [type(each).__name__ if isinstance(each, Exception) else each for each in outcomes]

    async def everything(self) -> Any:
        found = [await self.runs.find(owner=each.owner, request_id=each.request_id) for each in self.known]
        tasks = [await self.runs.find(task_id=each.task_id) for each in self.known if each.task_id is not None]
        return self.known, found, tasks, await self.runs.count(), (await self.admin.figures())["byStatus"]


async def _awaited(what: Any) -> Any:
    return await what


async def compare_runs(one: RunHistorian, other: RunHistorian, history: list[Any]) -> None:
    """Take the same history twice, and compare every outcome and everything that is left."""
    for together in history:
        outcomes = [_comparable(await each.take(together)) for each in (one, other)]
        assert outcomes[0] == outcomes[1]
        kept = [_comparable(await each.everything()) for each in (one, other)]
        assert kept[0] == kept[1]
        assert [await each.admin.verify() for each in (one, other)] == [[], []]


def _comparable(value: Any) -> Any:
    """An engine may leave numbers out, as long as later runs have higher ones."""
    if isinstance(value, Run):
        return replace(value, number=0, questions=list(value.questions))
    if isinstance(value, dict):
        return {key: _comparable(each) for key, each in value.items()}
    return [_comparable(each) for each in value] if isinstance(value, list | tuple) else value
