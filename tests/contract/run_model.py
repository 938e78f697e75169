"""Runs in a plain dictionary, for one process: what a store of runs is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from typing import Any

from msgspec.structs import replace

from dragoman.agents.ledger import EntryStatus
from dragoman.errors import LeaseLost, RequestConflict
from dragoman.tasks.port import (
    MOST_ATTEMPTS,
    Answered,
    Begin,
    Cancelled,
    Ended,
    NewRun,
    Note,
    QuestionAsked,
    Released,
    Run,
    RunChange,
    RunQuery,
    StoredQuestion,
)
from tests.contract.ledger_model import told


class RunsModel:
    """As much of `Runs`, and of what `LedgerAdmin` does with runs, as histories ask for."""

    def __init__(self) -> None:
        self.kept: dict[int, Run] = {}
        self.last = 0

    def add(self, run: NewRun) -> Awaitable[Run]:
        return told(lambda: self._add(run))

    def change(self, change: RunChange) -> Awaitable[Run]:
        return told(lambda: self._change(change))

    async def find(self, *, task_id: str | None = None, owner: str = "", request_id: str = "") -> Run | None:
        for run in self.kept.values():
            if run.task_id == task_id if task_id is not None else (run.owner, run.request_id) == (owner, request_id):
                return run
        return None

    async def page(self, query: RunQuery) -> list[Run]:
        runs = (replace(run, result=None) for run in self.kept.values())
        return [run if run.status is EntryStatus.RUNNING else replace(run, questions=()) for run in runs]

    async def count(self) -> dict[str, Any]:
        tasks = [run for run in self.kept.values() if run.task_id is not None]
        return {
            "byStatus": dict(Counter("input_required" if run.pending else run.status.value for run in tasks)),
            "oldest": min((run.created_at for run in tasks if run.is_open), default=None),
        }

    async def close(self, at: float, unknown: bytes) -> None:
        for run in [run for run in self.kept.values() if run.is_held]:
            if run.is_repeatable and run.attempts < MOST_ATTEMPTS:
                self._release(run, at)
            else:
                self._end(run, EntryStatus.UNKNOWN, at, at + run.expires_at - run.created_at, error=unknown)

    async def purge(self, now: float, limit: int) -> int:
        over = [run for run in self.kept.values() if run.expires_at <= now]
        gone = [run for run in over if not run.is_open or run.waits_for_repeat]
        for run in gone:
            del self.kept[run.number]
        return sum(1 if run.result is None else 2 for run in gone)

    async def figures(self) -> dict[str, Any]:
        return {"byStatus": {}}

    async def verify(self) -> list[str]:
        return []

    def _add(self, new: NewRun) -> Run:
        for known in self.kept.values():
            if (known.owner, known.request_id) == (new.owner, new.request_id):
                if (known.tool, known.arguments) != (new.tool, new.arguments):
                    raise RequestConflict(new.request_id, new.owner)
                return known
        self.last += 1
        self.kept[self.last] = Run(
            number=self.last,
            owner=new.owner,
            tool=new.tool,
            request_id=new.request_id,
            arguments=new.arguments,
            status=EntryStatus.WAITING,
            created_at=new.at,
            updated_at=new.at,
            expires_at=new.expires_at,
            correlation_id=new.correlation_id,
            caller=new.caller,
            fence=0,
            attempts=0,
            is_repeatable=new.is_repeatable,
            task_id=new.task_id,
            capabilities=new.capabilities,
            questions=tuple(new.answers),
        )
        if new.begins:
            self._begin(self.kept[self.last], new.at)
        return replace(self.kept[self.last], is_new=True)

    def _begin(self, run: Run, at: float) -> Run:
        if run.status is not EntryStatus.WAITING:
            raise LeaseLost(f"run {run.number}")
        begun = {"status": EntryStatus.RUNNING, "attempts": run.attempts + 1, "fence": run.fence + 1}
        return self._put(run, updated_at=at, is_held=True, **begun)

    def _change(self, change: RunChange) -> Run:
        run = self.kept.get(change.number)
        if run is None:
            raise LeaseLost(f"run {change.number}")
        if not isinstance(change, Begin | Answered | Cancelled):
            is_late = isinstance(change, Ended) and run.status in (EntryStatus.WAITING, EntryStatus.UNKNOWN)
            if not (run.is_held or is_late) or run.fence != change.fence:
                raise LeaseLost(f"run {change.number}")
            run = self._put(run, updated_at=change.at)
        return replace(self._changed(run, change), result=None)

    def _changed(self, run: Run, change: RunChange) -> Run:
        match change:
            case Begin():
                return self._begin(run, change.at)
            case Note():
                return self._put(run, message=change.message, progress=change.progress)
            case QuestionAsked():
                return self._put(run, questions=_asked(run, change))
            case Answered() if run.is_open:
                asked = {each.key for each in run.unanswered}
                questions = tuple(
                    replace(each, answer=change.answers.get(each.key)) if each.key in asked else each
                    for each in run.questions
                )
                return self._put(run, questions=questions, updated_at=change.at)
            case Cancelled() if run.status is EntryStatus.WAITING:
                cancelled = self._put(run, is_cancelled=True)
                return self._end(cancelled, EntryStatus.CANCELLED, change.at, change.expires_at)
            case Cancelled() if run.is_open:
                return self._put(run, is_cancelled=True, updated_at=change.at)
            case Ended():
                more = {"error": change.error, "result": change.result}
                return self._end(run, change.status, change.at, change.expires_at, **more)
            case Released() if run.task_id is None:
                return self.kept.pop(run.number)
            case Released():
                return self._release(run, change.at, -1)
        return run

    def _end(self, run: Run, status: EntryStatus, at: float, expires_at: float, **more: Any) -> Run:
        until = max(expires_at, run.expires_at)
        return self._put(run, status=status, updated_at=at, ended_at=at, expires_at=until, is_held=False, **more)

    def _release(self, run: Run, at: float, attempts: int = 0) -> Run:
        run = self._put(run, is_held=False, updated_at=at, attempts=run.attempts + attempts)
        if run.is_cancelled:
            return self._end(run, EntryStatus.CANCELLED, at, at + run.expires_at - run.created_at)
        return self._put(run, status=EntryStatus.WAITING)

    def _put(self, run: Run, **changes: Any) -> Run:
        self.kept[run.number] = replace(run, **changes)
        return self.kept[run.number]


def _asked(run: Run, asking: QuestionAsked) -> tuple[StoredQuestion, ...]:
    """The questions, with one that was asked before or a new one."""
    mark = asking.digest, asking.place
    if any((each.digest, each.place) == mark for each in run.questions):
        return tuple(
            replace(each, fence=asking.fence) if (each.digest, each.place) == mark else each for each in run.questions
        )
    new = StoredQuestion(
        key=f"question-{len(run.questions) + 1}",
        digest=asking.digest,
        place=asking.place,
        request=asking.request,
        fence=asking.fence,
    )
    return (*run.questions, new)
