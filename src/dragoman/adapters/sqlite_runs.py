"""The `Runs` of a database that several processes may share."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_ledger_admin import forget
from dragoman.adapters.sqlite_ledger_process import SqliteProcess
from dragoman.adapters.sqlite_ledger_rows import IS_OPEN, IS_OPEN_RUN, SqliteSpace, add
from dragoman.adapters.sqlite_watch import Watcher
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.agents.ledger import LARGE_RESULT, OPEN, TOOL_TARGET, EntryStatus
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

_COLUMNS = (
    "e.number, e.owner, e.target, e.request_id, e.payload, e.status, e.accepted_at, r.updated_at, e.expires_at, "
    "e.correlation_id, e.caller, r.fence, e.attempts, r.is_repeatable, r.task_id, r.capabilities, r.message, "
    "r.progress, r.is_cancelled, e.ended_at, e.error, r.process"
)
_RUN = f"SELECT {_COLUMNS} FROM ledger_run r JOIN ledger_entry e ON e.number = r.number"
_QUESTIONS = "SELECT key, digest, place, request, fence, answer FROM ledger_question WHERE number = ? ORDER BY asked"
_RESULT = (
    "SELECT coalesce(v.value, e.payload) FROM ledger_entry e LEFT JOIN ledger_result v ON v.ref = e.completion_ref "
    "WHERE e.space = ? AND e.owner = ? AND e.request_id = ? AND e.kind = 'RESPONSE'"
)
_ADD_RUN = (
    "INSERT INTO ledger_run (number, task_id, process, fence, is_repeatable, updated_at, capabilities) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_ADD_QUESTION = (
    "INSERT INTO ledger_question (number, asked, key, digest, place, request, fence, answer) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_BEGIN = (
    "UPDATE ledger_entry SET status = 'running', attempts = attempts + 1 "
    "WHERE number = ? AND space = ? AND status = 'waiting'"
)
_HOLD = "UPDATE ledger_run SET process = ?, fence = fence + 1, updated_at = ? WHERE number = ?"
_TOUCH = "UPDATE ledger_run SET updated_at = ? WHERE number = ? AND fence = ? AND process = ?"
_NOTE = "UPDATE ledger_run SET message = ?, progress = ? WHERE number = ?"
_UNASK = "UPDATE ledger_question SET fence = 0 WHERE number = ? AND digest = ? AND place = ? AND answer IS NULL"
_ANSWER = "UPDATE ledger_question SET answer = ? WHERE number = ? AND key = ? AND answer IS NULL AND fence > 0"
_LET_GO = "UPDATE ledger_run SET process = NULL, updated_at = ? WHERE number = ?"
_TOUCH_LAST = "UPDATE ledger_run SET updated_at = ? WHERE number = ? AND fence = ? AND (process = ? OR process IS NULL)"
"""For its last holder, also after another process has given it up: whoever begins it again raises the fence."""
_END = (
    "UPDATE ledger_entry SET status = ?, error = ?, ended_at = ?, expires_at = max(expires_at, ?) "
    f"WHERE number = ? AND ({IS_OPEN} OR status = 'unknown')"
)
_HOLDERS = (  # The plus keeps SQLite from going through the whole space.
    "SELECT DISTINCT r.process, p.until FROM ledger_run r JOIN ledger_entry e ON e.number = r.number "
    "LEFT JOIN ledger_process p ON p.id = r.process WHERE r.process IS NOT NULL AND +e.space = ?"
)
_HELD = f"{_RUN} WHERE r.process = ? AND e.space = ?"
_COUNT = (
    "SELECT e.status, EXISTS (SELECT 1 FROM ledger_question q WHERE q.number = r.number AND q.fence = r.fence "
    "AND q.answer IS NULL AND e.status = 'running') AS asks, count(*), min(e.accepted_at) FROM ledger_run r "
    "JOIN ledger_entry e ON e.number = r.number WHERE e.space = ? AND r.task_id IS NOT NULL GROUP BY 1, 2"
)

_MOST_SEEN = 256
_SELDOM_SECONDS = 0.5


class SqliteRuns:
    """Implements `Runs` for one space of a database. Nothing is opened before the first use."""

    def __init__(self, database: SqliteDatabase, space: str, process: SqliteProcess | None = None) -> None:
        self._database = database
        self._space = SqliteSpace(database, space)
        self._process = process or SqliteProcess(database)
        self._seen: dict[str, Run] = {}
        """Tasks that were read, by id, since the database last changed: most are looked at again and again."""
        self._seen_at: int | None = None

    def add(self, run: NewRun) -> Awaitable[Run]:
        return self._database.write(partial(self._add, run))

    def change(self, change: RunChange) -> Awaitable[Run]:
        return self._database.write(partial(self._change, change))

    async def find(self, *, task_id: str | None = None, owner: str = "", request_id: str = "") -> Run | None:
        if task_id is None:
            return await self._space.read(self._find, None, owner, request_id)
        version = self._database.version.now()
        if version is None or version != self._seen_at:
            self._seen, self._seen_at = {}, version
        elif task_id in self._seen:
            return self._seen[task_id]
        run = await self._space.read(self._find, task_id, "", "")
        if run is not None and version is not None and version == self._seen_at:
            self._see(task_id, run)
        return run

    async def page(self, query: RunQuery) -> list[Run]:
        return await self._space.read(_page, query)

    async def count(self) -> dict[str, Any]:
        return await self._space.read(_count)

    async def sweep(self, at: float, unknown: bytes) -> int:
        # Processes look again and again, and that must cost no write.
        if not await self._space.read(self._has_dead_holders):
            return 0
        return await self._database.write(partial(self._sweep, at, unknown))

    def watch(
        self,
        changed: Callable[[], None],
        lost: Callable[[], None],
        lease_seconds: float,
        is_alive: Callable[[], bool],
    ) -> None:
        watcher = Watcher(
            changed=changed, lost=lost, is_alive=is_alive, lease_seconds=lease_seconds, most_seconds=_SELDOM_SECONDS
        )
        self._process.watch(self, watcher)

    def look_often(self) -> Callable[[], None]:
        return self._process.look_often()

    async def close(self, at: float, unknown: bytes) -> None:
        def give_back(writing: Transaction) -> None:
            self._give_up(self._process.id or "", at, unknown, writing)

        await self._process.leave(self, give_back)

    def _see(self, task_id: str, run: Run) -> None:
        if len(self._seen) < _MOST_SEEN and len(run.arguments) + len(run.result or b"") <= LARGE_RESULT:
            self._seen[task_id] = run

    def _add(self, run: NewRun, writing: Transaction) -> Run:
        space = self._space.of(writing)
        added = add(run.entry(), space, writing)
        if not added.is_new:
            return self._with_particulars(self._read_run(writing, added.number), space, writing)
        process = self._process.member(writing) if run.begins else None
        writing.execute(
            _ADD_RUN,
            (added.number, run.task_id, process, int(run.begins), run.is_repeatable, run.at, run.capabilities),
        )
        for asked, each in enumerate(run.answers, 1):
            values = (each.key, each.digest, each.place, each.request, each.fence, each.answer)
            writing.execute(_ADD_QUESTION, (added.number, asked, *values))
        if run.begins:
            writing.execute(_BEGIN, (added.number, space))
        return _as_stored(run, added.number)

    def _change(self, change: RunChange, writing: Transaction) -> Run:
        number = change.number
        after: Run | None = None
        match change:
            case Begin():
                if writing.execute(_BEGIN, (number, self._space.of(writing))).rowcount != 1:
                    raise LeaseLost(f"run {number}")
                writing.execute(_HOLD, (self._process.member(writing), change.at, number))
            case Note():
                self._check_held(change, writing)
                writing.execute(_NOTE, (change.message, change.progress, number))
            case QuestionAsked():
                self._check_held(change, writing)
                _ask(writing, change)
            case Unasked():
                self._check_held(change, writing)
                writing.execute(_UNASK, (number, change.digest, change.place))
            case Answered():
                if self._read_run(writing, number).is_open:
                    for key, answer in change.answers.items():
                        writing.execute(_ANSWER, (answer, number, key))
                    writing.execute("UPDATE ledger_run SET updated_at = ? WHERE number = ?", (change.at, number))
            case Cancelled():
                self._cancel(change, writing)
            case Ended():
                self._check_held(change, writing, _TOUCH_LAST)
                after = self._end(change, writing)
            case Released():
                self._check_held(change, writing)
                run = self._read_run(writing, number)
                if run.task_id is None:
                    forget(writing, self._space.of(writing), number, run.owner, run.request_id)
                    return run
                self._let_wait(run, change.at, writing)
                writing.execute("UPDATE ledger_entry SET attempts = attempts - 1 WHERE number = ?", (number,))
        after = after or self._read_run(writing, number)
        return self._with_particulars(after, self._space.of(writing), writing, with_result=False)

    def _check_held(
        self, change: Note | QuestionAsked | Unasked | Ended | Released, writing: Transaction, touch: str = _TOUCH
    ) -> None:
        touched = writing.execute(touch, (change.at, change.number, change.fence, self._process.id))
        if touched.rowcount != 1:
            raise LeaseLost(f"run {change.number}")

    def _cancel(self, change: Cancelled, writing: Transaction) -> None:
        run = self._read_run(writing, change.number)
        if run.is_open:
            writing.execute(
                "UPDATE ledger_run SET is_cancelled = 1, updated_at = ? WHERE number = ?", (change.at, run.number)
            )
        if run.status is EntryStatus.WAITING:
            writing.execute(_END, ("cancelled", None, change.at, change.expires_at, run.number))

    def _end(self, done: Ended, writing: Transaction) -> Run:
        values = (done.status.value, done.error, done.at, done.expires_at, done.number)
        if writing.execute(_END, values).rowcount != 1:
            raise LeaseLost(f"run {done.number}")
        writing.execute(_LET_GO, (done.at, done.number))
        run = self._read_run(writing, done.number)
        if done.result is None:
            return run
        add(run.response(done, done.result), self._space.of(writing), writing)
        return run

    def _has_dead_holders(self, connection: sqlite3.Connection, space: int) -> bool:
        holders = connection.execute(_HOLDERS, (space,)).fetchall()
        return any(
            process != self._process.id and not (until is not None and self._process.seems_alive(process, until))
            for process, until in holders
        )

    def _sweep(self, at: float, unknown: bytes, writing: Transaction) -> int:
        holders = [row[0] for row in writing.execute(_HOLDERS, (self._space.of(writing),)).fetchall()]
        dead = [process for process in holders if not self._process.is_alive(process, writing)]
        return sum(self._give_up(process, at, unknown, writing) for process in dead)

    def _give_up(self, process: str, at: float, unknown: bytes, writing: Transaction) -> int:
        """Give up what a process has begun and not ended; how many runs these are."""
        runs = [_run_of(row) for row in writing.execute(_HELD, (process, self._space.of(writing))).fetchall()]
        for run in runs:
            if run.is_repeatable and run.attempts < MOST_ATTEMPTS:
                self._let_wait(run, at, writing)
            else:
                ended = Ended(
                    number=run.number,
                    fence=run.fence,
                    at=at,
                    expires_at=at + run.expires_at - run.created_at,
                    status=EntryStatus.UNKNOWN,
                    error=unknown,
                )
                self._end(ended, writing)
        return len(runs)

    def _let_wait(self, run: Run, at: float, writing: Transaction) -> None:
        writing.execute(_LET_GO, (at, run.number))
        if run.is_cancelled:
            writing.execute(_END, ("cancelled", None, at, at + run.expires_at - run.created_at, run.number))
        else:
            writing.execute("UPDATE ledger_entry SET status = 'waiting' WHERE number = ?", (run.number,))

    def _find(
        self, connection: sqlite3.Connection, space: int, task_id: str | None, owner: str, request_id: str
    ) -> Run | None:
        if task_id is not None:
            row = connection.execute(f"{_RUN} WHERE r.task_id = ? AND e.space = ?", (task_id, space)).fetchone()
        else:
            where = "WHERE e.space = ? AND e.owner = ? AND e.request_id = ? AND e.kind = 'REQUEST'"
            row = connection.execute(f"{_RUN} {where}", (space, owner, request_id)).fetchone()
        return None if row is None else self._with_particulars(_run_of(row), space, connection)

    def _read_run(self, writing: Transaction, number: int) -> Run:
        where = (number, self._space.of(writing))
        row = writing.execute(f"{_RUN} WHERE r.number = ? AND e.space = ?", where).fetchone()
        if row is None:
            raise LeaseLost(f"run {number}")
        return _run_of(row)

    def _with_particulars(self, run: Run, space: int, connection: Any, *, with_result: bool = True) -> Run:
        questions = _questions(run, connection)
        result, is_held = None, False
        if run.status is EntryStatus.COMPLETED and with_result:
            (result,) = connection.execute(_RESULT, (space, run.owner, run.request_id)).fetchone()
        elif run.status is EntryStatus.RUNNING:
            holder = connection.execute(
                "SELECT p.id, p.until FROM ledger_run r JOIN ledger_process p ON p.id = r.process WHERE r.number = ?",
                (run.number,),
            ).fetchone()
            is_held = holder is not None and (holder[0] == self._process.id or self._process.seems_alive(*holder))
        return replace(run, questions=questions, result=result, is_held=is_held)


def _as_stored(run: NewRun, number: int) -> Run:
    """A run that was just stored."""
    return Run(
        number=number,
        owner=run.owner,
        tool=run.tool,
        request_id=run.request_id,
        arguments=run.arguments,
        status=EntryStatus.RUNNING if run.begins else EntryStatus.WAITING,
        created_at=run.at,
        updated_at=run.at,
        expires_at=run.expires_at,
        correlation_id=run.correlation_id,
        caller=run.caller,
        fence=int(run.begins),
        attempts=int(run.begins),
        is_repeatable=run.is_repeatable,
        task_id=run.task_id,
        capabilities=run.capabilities,
        questions=tuple(run.answers),
        is_held=run.begins,
        is_new=True,
    )


def _ask(writing: Transaction, asking: QuestionAsked) -> None:
    """Ask again what was asked before, or something new."""
    again = "UPDATE ledger_question SET fence = ? WHERE number = ? AND digest = ? AND place = ?"
    if writing.execute(again, (asking.fence, asking.number, asking.digest, asking.place)).rowcount:
        return
    query = "SELECT coalesce(max(asked), 0) + 1 FROM ledger_question WHERE number = ?"
    (asked,) = writing.execute(query, (asking.number,)).fetchone()
    values = (f"question-{asked}", asking.digest, asking.place, asking.request, asking.fence, None)
    writing.execute(_ADD_QUESTION, (asking.number, asked, *values))


def _page(connection: sqlite3.Connection, space: int, query: RunQuery) -> list[Run]:
    wanted: list[tuple[str, Any]] = [("e.space = ?", space)]
    wanted += [("e.owner = ?", query.owner)] if query.owner is not None else []
    wanted += [("e.target = ?", TOOL_TARGET + query.tool)] if query.tool is not None else []
    wanted += [("r.number < ?", query.before)] if query.before is not None else []
    conditions, values = [each for each, _ in wanted], [value for _, value in wanted]
    if query.statuses is not None:
        conditions += [IS_OPEN_RUN] if set(query.statuses) <= set(OPEN) else []
        conditions.append(f"e.status IN ({', '.join('?' * len(query.statuses))})")
        values += map(str, query.statuses)
    if query.tasks_only:
        conditions.append("r.task_id IS NOT NULL")
    order = "r.number" if query.oldest_first else "r.number DESC"
    rows = connection.execute(
        f"{_RUN} WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT ?", (*values, query.limit)
    )
    runs = [_run_of(row) for row in rows]
    return [replace(run, questions=_questions(run, connection)) if _is_running(run) else run for run in runs]


def _count(connection: sqlite3.Connection, space: int) -> dict[str, Any]:
    return counted(connection.execute(_COUNT, (space,)).fetchall())


def counted(rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """Figures from rows of status, whether something is asked, how many, and when the oldest was created."""
    by_status: dict[str, int] = {}
    oldest = None
    for status, asks, count, first in rows:
        name = "input_required" if asks else status
        by_status[name] = by_status.get(name, 0) + count
        if EntryStatus(status) in OPEN:
            oldest = first if oldest is None else min(oldest, first)
    return {"byStatus": by_status, "oldest": oldest}


def _is_running(run: Run) -> bool:
    return run.status is EntryStatus.RUNNING


def _questions(run: Run, connection: Any) -> list[StoredQuestion]:
    return [_question_of(each) for each in connection.execute(_QUESTIONS, (run.number,)).fetchall()]


def _question_of(row: Sequence[Any]) -> StoredQuestion:
    key, digest, place, request, fence, answer = row
    return StoredQuestion(key=key, digest=digest, place=place, request=request, fence=fence, answer=answer)


def _run_of(row: Sequence[Any]) -> Run:
    return Run(
        number=row[0],
        owner=row[1],
        tool=row[2].removeprefix(TOOL_TARGET),
        request_id=row[3],
        arguments=row[4],
        status=EntryStatus(row[5]),
        created_at=row[6],
        updated_at=row[7],
        expires_at=row[8],
        correlation_id=row[9],
        caller=row[10],
        fence=row[11],
        attempts=row[12],
        is_repeatable=bool(row[13]),
        task_id=row[14],
        capabilities=row[15],
        message=row[16],
        progress=row[17],
        is_cancelled=bool(row[18]),
        ended_at=row[19],
        error=row[20],
        is_held=row[21] is not None,
    )
