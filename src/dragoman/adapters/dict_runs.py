"""The runs of a process that keeps nothing: dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.adapters.dict_ledger import DictBooks, Done
from dragoman.agents.ledger import OPEN, TOOL_TARGET, EntryStatus, LedgerEntry
from dragoman.errors import LeaseLost
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
    Unasked,
)


class KeptRun(Struct):
    """The facts of a run beside its message in the books."""

    updated_at: float
    is_repeatable: bool
    task_id: str | None
    capabilities: bytes
    questions: list[StoredQuestion]
    fence: int = 0
    is_held: bool = False
    is_cancelled: bool = False
    message: str | None = None
    progress: bytes | None = None


class DictRuns:
    """Implements `Runs` for one process, on the books of its ledger."""

    def __init__(self, books: DictBooks) -> None:
        self._books = books

    def add(self, run: NewRun) -> Awaitable[Run]:
        return Done(lambda: self._add(run))

    def change(self, change: RunChange) -> Awaitable[Run]:
        return Done(lambda: self._change(change))

    async def find(self, *, task_id: str | None = None, owner: str = "", request_id: str = "") -> Run | None:
        if task_id is not None:
            number = self._books.tasks.get(task_id)
        else:
            number = self._books.requests.get((owner, request_id, "REQUEST"))
        return None if number is None or number not in self._books.runs else self._run(number)

    async def page(self, query: RunQuery) -> list[Run]:
        books = self._books
        numbers: Iterable[int] = books.runs
        if query.statuses is not None and set(query.statuses) <= set(OPEN):  # Most runs have ended.
            open_ones = (each for target, each in books.open.items() if target.startswith(TOOL_TARGET))
            numbers = sorted(number for each in open_ones for number in each)
        wanted = (number for number in numbers if _is_wanted(books.entries[number], books.runs[number], query))
        ordered = wanted if query.oldest_first else reversed(list(wanted))
        runs = [replace(self._run(number), result=None) for number in islice(ordered, query.limit)]
        return [run if run.status is EntryStatus.RUNNING else replace(run, questions=()) for run in runs]

    async def count(self) -> dict[str, Any]:
        tasks = [run for run in map(self._run, self._books.runs) if run.task_id is not None]
        by_status = Counter("input_required" if run.pending else run.status.value for run in tasks)
        return {
            "byStatus": dict(by_status),
            "oldest": min((run.created_at for run in tasks if run.is_open), default=None),
        }

    async def sweep(self, at: float, unknown: bytes) -> int:
        return 0  # No other process has begun anything.

    def watch(
        self,
        changed: Callable[[], None],
        lost: Callable[[], None],
        lease_seconds: float,
        is_alive: Callable[[], bool],
    ) -> None:
        """No other process can change anything."""

    def look_often(self) -> Callable[[], None]:
        return lambda: None

    async def close(self, at: float, unknown: bytes) -> None:
        for number, kept in tuple(self._books.runs.items()):
            if not kept.is_held:
                continue
            run = self._run(number)
            if run.is_repeatable and run.attempts < MOST_ATTEMPTS:
                self._wait_or_forget(run, at)
            else:
                self._end(run, EntryStatus.UNKNOWN, at, at + run.expires_at - run.created_at, unknown)

    def _add(self, run: NewRun) -> Run:
        books = self._books
        added = books.add(run.entry())
        if not added.is_new:
            return self._run(added.number)
        books.runs[added.number] = KeptRun(run.at, run.is_repeatable, run.task_id, run.capabilities, list(run.answers))
        if run.task_id is not None:
            books.tasks[run.task_id] = added.number
        if run.begins:
            self._begin(added, run.at)
        return replace(self._run(added.number), is_new=True)

    def _begin(self, entry: LedgerEntry, at: float) -> None:
        if entry.status is not EntryStatus.WAITING:
            raise LeaseLost(f"run {entry.number}")
        kept = self._books.runs[entry.number]
        kept.fence, kept.is_held, kept.updated_at = kept.fence + 1, True, at
        self._books.replace(entry, status=EntryStatus.RUNNING, attempts=entry.attempts + 1)

    def _change(self, change: RunChange) -> Run:
        number = change.number
        kept = self._books.runs.get(number)
        if kept is None:
            raise LeaseLost(f"run {number}")
        if isinstance(change, Note | QuestionAsked | Unasked | Ended | Released):
            if not kept.is_held or kept.fence != change.fence:
                raise LeaseLost(f"run {number}")
            kept.updated_at = change.at
        run = self._run(number)
        match change:
            case Begin():
                self._begin(self._books.entries[number], change.at)
            case Note():
                kept.message, kept.progress = change.message, change.progress
            case QuestionAsked():
                _ask(kept, change)
            case Unasked():
                kept.questions = [
                    replace(each, fence=0) if (each.digest, each.place) == (change.digest, change.place) else each
                    for each in kept.questions
                ]
            case Answered():
                if run.is_open:
                    asked = {each.key for each in run.unanswered}
                    kept.questions = [
                        replace(each, answer=change.answers.get(each.key)) if each.key in asked else each
                        for each in kept.questions
                    ]
                    kept.updated_at = change.at
            case Cancelled():
                if run.is_open:
                    kept.is_cancelled, kept.updated_at = True, change.at
                if run.status is EntryStatus.WAITING:
                    self._end(run, EntryStatus.CANCELLED, change.at, change.expires_at)
            case Ended():
                self._end(run, change.status, change.at, change.expires_at, change.error)
                if change.result is not None:
                    kept_until = self._books.entries[number].expires_at
                    self._books.add(replace(run, expires_at=kept_until).response(change, change.result))
            case Released():
                self._wait_or_forget(run, change.at)
                if run.task_id is None:
                    return run
                self._books.replace(self._books.entries[number], attempts=run.attempts - 1)
        return replace(self._run(number), result=None)

    def _end(self, run: Run, status: EntryStatus, at: float, expires_at: float, error: bytes | None = None) -> None:
        kept, entry = self._books.runs[run.number], self._books.entries[run.number]
        kept.is_held, kept.updated_at = False, at
        expires_at = max(expires_at, entry.expires_at)
        self._books.replace(entry, status=status, error=error, ended_at=at, expires_at=expires_at)

    def _wait_or_forget(self, run: Run, at: float) -> None:
        kept, entry = self._books.runs[run.number], self._books.entries[run.number]
        kept.is_held, kept.updated_at = False, at
        if run.task_id is None:
            self._books.replace(entry, status=EntryStatus.EXPIRED)
            self._books.forget(self._books.entries[run.number])
        elif run.is_cancelled:
            self._end(run, EntryStatus.CANCELLED, at, at + run.expires_at - run.created_at)
        else:
            self._books.replace(entry, status=EntryStatus.WAITING)

    def _run(self, number: int) -> Run:
        entry, kept = self._books.entries[number], self._books.runs[number]
        result = None
        if entry.status is EntryStatus.COMPLETED:
            answer = self._books.entries[self._books.requests[(entry.owner, entry.request_id, "RESPONSE")]]
            ref = answer.completion_ref
            result = answer.payload if ref is None else self._books.results[ref]
        return Run(
            number=number,
            owner=entry.owner,
            tool=entry.target.removeprefix(TOOL_TARGET),
            request_id=entry.request_id or "",
            arguments=entry.payload,
            status=entry.status,
            created_at=entry.accepted_at,
            updated_at=kept.updated_at,
            expires_at=entry.expires_at,
            correlation_id=entry.correlation_id,
            caller=entry.caller,
            fence=kept.fence,
            attempts=entry.attempts,
            is_repeatable=kept.is_repeatable,
            task_id=kept.task_id,
            capabilities=kept.capabilities,
            message=kept.message,
            progress=kept.progress,
            is_cancelled=kept.is_cancelled,
            ended_at=entry.ended_at,
            error=entry.error,
            result=result,
            questions=tuple(kept.questions),
            is_held=kept.is_held,
        )


def _ask(kept: KeptRun, asking: QuestionAsked) -> None:
    """Ask again what was asked before, or something new."""
    for index, each in enumerate(kept.questions):
        if (each.digest, each.place) == (asking.digest, asking.place):
            kept.questions[index] = replace(each, fence=asking.fence)
            return
    kept.questions.append(
        StoredQuestion(
            key=f"question-{len(kept.questions) + 1}",
            digest=asking.digest,
            place=asking.place,
            request=asking.request,
            fence=asking.fence,
        )
    )


def _is_wanted(entry: LedgerEntry, kept: KeptRun, query: RunQuery) -> bool:
    return (
        (query.owner is None or entry.owner == query.owner)
        and (query.tool is None or entry.target == TOOL_TARGET + query.tool)
        and (query.statuses is None or entry.status in query.statuses)
        and (query.before is None or entry.number < query.before)
        and (kept.task_id is not None or not query.tasks_only)
    )
