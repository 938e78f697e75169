"""The points at which a server with tasks and idempotency keys can be made to die.

A row is added, its run is begun later or again, a question and its answer are stored, and so is the result; runs are
taken over from a process that has ended. Each of these is asked for, written, committed and known, as in `points.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from chaos.points import STEPS, Pass, tell_written
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_runs import SqliteRuns
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.tasks.port import Answered, Begin, Ended, NewRun, QuestionAsked, Run, RunChange

T = TypeVar("T")

_FIRST = (
    "row asked",
    "row committed",
    "handler begun",
    "handler ended",
    "result asked",
    "question known",
    "result committed",
    "answer asked",
    "answer committed",
    "takeover committed",
)
"""The points that even a short run reaches."""
_CHANGES = {Begin: "begin", QuestionAsked: "question", Answered: "answer", Ended: "result"}
_ALL = (f"{operation} {step}" for operation in ("row", *_CHANGES.values(), "takeover") for step in STEPS)
TASK_POINTS = tuple(point for point in dict.fromkeys((*_FIRST, *_ALL)) if point != "takeover asked")
"""Whether there is something to take over is known once the statements have run."""


class PointRuns(SqliteRuns):
    """Runs that tell which points they pass."""

    def __init__(self, database: SqliteDatabase, space: str, told: Pass) -> None:
        super().__init__(database, space)
        self._told = told

    def add(self, run: NewRun) -> Awaitable[Run]:
        self._told("row asked")
        return self._tell("row", super().add(run))

    def change(self, change: RunChange) -> Awaitable[Run]:
        operation = _CHANGES.get(type(change))
        if operation is None:
            return super().change(change)
        self._told(f"{operation} asked")
        return self._tell(operation, super().change(change))

    async def sweep(self, at: float, unknown: bytes) -> int:
        count = await super().sweep(at, unknown)
        if count:
            self._told("takeover known")
        return count

    def _add(self, run: NewRun, writing: Transaction) -> Run:
        added = super()._add(run, writing)
        if added.is_new:
            tell_written("row", writing, self._told)
        return added

    def _change(self, change: RunChange, writing: Transaction) -> Run:
        run = super()._change(change, writing)
        if type(change) in _CHANGES:
            tell_written(_CHANGES[type(change)], writing, self._told)
        return run

    def _sweep(self, at: float, unknown: bytes, writing: Transaction) -> int:
        count = super()._sweep(at, unknown, writing)
        if count:
            tell_written("takeover", writing, self._told)
        return count

    def _tell(self, operation: str, storing: Awaitable[T]) -> Awaitable[T]:
        async def told() -> T:
            value = await storing
            self._told(f"{operation} known")
            return value

        return told()
