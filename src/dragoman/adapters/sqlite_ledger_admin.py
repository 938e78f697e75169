"""The operators' view of the ledger of a database: pages, redrive, purge, figures, checks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_ledger_rows import COLUMNS, IS_OPEN, IS_OPEN_RUN, LOST_CALL, SqliteSpace, add, entry_of
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.agents.ledger import EXACT, OPEN, PARKED, TOOL_TARGET, AgentQueue, LedgerEntry, Query

if TYPE_CHECKING:
    import sqlite3

_INDEXED = {frozenset(OPEN): IS_OPEN, frozenset(PARKED): "status IN ('dead', 'unknown')"}
"""The conditions of partial indexes: SQLite uses one only where it finds the same words."""
_IS_MESSAGE = f"target NOT GLOB '{TOOL_TARGET}*' AND source NOT GLOB '{TOOL_TARGET}*'"
_FORGOTTEN = "SELECT number, owner, request_id FROM ledger_entry WHERE space = ? AND {} AND expires_at <= ? LIMIT ?"
_QUEUE = (
    f"SELECT count(*), min(accepted_at) FROM (SELECT accepted_at FROM ledger_entry "
    f"WHERE space = ? AND target = ? AND {IS_OPEN} ORDER BY number LIMIT ?)"
)
_CHECKS = (
    (
        "the pair {0} to {1} has given out {2} sequence numbers, and {3} are accounted for",
        "SELECT p.source, p.target, p.last_seq, p.purged + (SELECT count(*) FROM ledger_entry e "
        "WHERE e.space = p.space AND e.source = p.source AND e.target = p.target) AS known FROM ledger_pair p "
        "WHERE p.space = ? AND known != p.last_seq",
    ),
    (
        "message {0} has the sequence number {1} of another message of its pair",
        "SELECT max(number), seq FROM ledger_entry WHERE space = ? GROUP BY source, target, seq HAVING count(*) > 1",
    ),
    (
        "message {0} has the sequence number {1}, and its pair has given out {2}",
        "SELECT e.number, e.seq, coalesce(p.last_seq, 0) AS last FROM ledger_entry e LEFT JOIN ledger_pair p "
        "ON p.space = e.space AND p.source = e.source AND p.target = e.target WHERE e.space = ? AND e.seq > last",
    ),
    (
        "response {0} has no request",
        "SELECT r.number FROM ledger_entry r WHERE r.space = ? AND r.kind = 'RESPONSE' AND NOT EXISTS (SELECT 1 FROM "
        "ledger_entry q WHERE q.space = r.space AND q.owner = r.owner AND q.request_id = r.request_id "
        "AND q.kind = 'REQUEST')",
    ),
    (
        "request {0} is completed, and has no response",
        "SELECT q.number FROM ledger_entry q WHERE q.space = ? AND q.kind = 'REQUEST' AND q.status = 'completed' "
        "AND NOT EXISTS (SELECT 1 FROM ledger_entry r WHERE r.space = q.space AND r.owner = q.owner "
        "AND r.request_id = q.request_id AND r.kind = 'RESPONSE')",
    ),
    (
        "request {0} has a response, and is {1}",
        "SELECT q.number, q.status FROM ledger_entry q JOIN ledger_entry r ON r.space = q.space AND r.owner = q.owner "
        "AND r.request_id = q.request_id AND r.kind = 'RESPONSE' WHERE q.space = ? AND q.kind = 'REQUEST' "
        "AND q.status != 'completed'",
    ),
    (
        "message {0} was handled in epoch {1}, and its agent is in epoch {2}",
        "SELECT e.number, e.fence, coalesce(a.epoch, 0) AS epoch FROM ledger_entry e LEFT JOIN ledger_agent a "
        "ON a.space = e.space AND a.id = e.target WHERE e.space = ? AND e.fence > epoch",
    ),
    (
        "run {0} is {1}, and belongs to a process",
        "SELECT r.number, e.status FROM ledger_run r JOIN ledger_entry e ON e.number = r.number "
        "WHERE e.space = ? AND r.process IS NOT NULL AND e.status != 'running'",
    ),
    (
        "run {0} is running, and belongs to no process",
        "SELECT r.number FROM ledger_run r JOIN ledger_entry e ON e.number = r.number "
        "WHERE e.space = ? AND e.status = 'running' AND (r.process IS NULL OR r.fence = 0)",
    ),
    (
        "message {0} is to a tool, and is no run",
        "SELECT e.number FROM ledger_entry e WHERE e.space = ? AND e.kind = 'REQUEST' AND e.target GLOB 'tool:*' "
        "AND NOT EXISTS (SELECT 1 FROM ledger_run r WHERE r.number = e.number)",
    ),
    (
        "run {0} was begun {1} times, and its fence is lower",
        "SELECT r.number, e.attempts FROM ledger_run r JOIN ledger_entry e ON e.number = r.number "
        "WHERE e.space = ? AND r.fence < e.attempts",
    ),
    (
        "message {0} refers to a result that is missing",
        "SELECT number FROM ledger_entry e WHERE space = ? AND completion_ref IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM ledger_result WHERE ref = e.completion_ref)",
    ),
)


class SqliteLedgerAdmin:
    """Implements `LedgerAdmin` for one space of a database."""

    def __init__(self, database: SqliteDatabase, space: str) -> None:
        self._space = SqliteSpace(database, space)

    async def page(self, query: Query) -> list[LedgerEntry]:
        return await self._space.read(_page, query)

    async def redrive(self, number: int, message_id: str, at: float, expires_at: float) -> LedgerEntry | None:
        return await self._space.database.write(partial(self._redrive, number, message_id, at, expires_at))

    async def purge(self, now: float, limit: int) -> int:
        return await self._space.database.write(partial(self._purge, now, limit))

    async def queues(self, agents: Sequence[str], most: int) -> dict[str, AgentQueue]:
        return await self._space.read(_queues, agents, most)

    async def figures(self, *, by_status: bool = True) -> dict[str, Any]:
        return await self._space.read(_figures, by_status)

    async def verify(self) -> list[str]:
        return await self._space.read(_verify)

    def _redrive(
        self, number: int, message_id: str, at: float, expires_at: float, writing: Transaction
    ) -> LedgerEntry | None:
        space = self._space.of(writing)
        query = f"SELECT {COLUMNS} FROM ledger_entry WHERE space = ? AND number = ?"
        row = writing.execute(query, (space, number)).fetchone()
        if row is None or not (found := entry_of(row)).can_be_redriven:
            return None
        forget(writing, space, number, found.owner, found.request_id)
        return add(found.again(message_id, at, expires_at), space, writing)

    def _purge(self, now: float, limit: int, writing: Transaction) -> int:
        space = self._space.of(writing)
        writing.execute(
            f"UPDATE ledger_entry SET status = 'expired', ended_at = ? WHERE number IN (SELECT number "
            f"FROM ledger_entry WHERE space = ? AND {IS_OPEN} AND expires_at <= ? AND NOT EXISTS (SELECT 1 "
            "FROM ledger_agent a WHERE a.space = ledger_entry.space AND id = target AND process IS NOT NULL) "
            "AND NOT EXISTS (SELECT 1 FROM ledger_run r WHERE r.number = ledger_entry.number) LIMIT ?)",
            (now, space, now, limit),
        )
        rows: list[Any] = []
        for which in (f"NOT {IS_OPEN} AND kind != 'RESPONSE'", f"{IS_OPEN_RUN} AND {LOST_CALL}"):
            rows += writing.execute(_FORGOTTEN.format(which), (space, now, limit - len(rows))).fetchall()
        return sum(forget(writing, space, *row) for row in rows)


def forget(writing: Transaction, space: int, number: int, owner: str, request_id: str | None) -> int:
    """Delete a message, and the response to it; how many these are."""
    rows = writing.execute(
        "SELECT number, source, target, completion_ref FROM ledger_entry WHERE number = ?"
        " UNION ALL SELECT number, source, target, completion_ref FROM ledger_entry"
        " WHERE space = ? AND owner = ? AND request_id = ? AND kind = 'RESPONSE'",
        (number, space, owner, request_id),
    ).fetchall()
    for each, source, target, ref in rows:
        for table in ("ledger_entry", "ledger_run", "ledger_question"):
            writing.execute(f"DELETE FROM {table} WHERE number = ?", (each,))
        writing.execute(
            "UPDATE ledger_pair SET purged = purged + 1 WHERE space = ? AND source = ? AND target = ?",
            (space, source, target),
        )
        if ref is not None:
            writing.execute("DELETE FROM ledger_result WHERE ref = ?", (ref,))
    return len(rows)


def _page(connection: sqlite3.Connection, space: int, query: Query) -> list[LedgerEntry]:
    return [entry_of(row) for row in connection.execute(*page_statement(space, query))]


def page_statement(space: int, query: Query) -> tuple[str, tuple[Any, ...]]:
    """The statement that reads a page, and its values."""
    indexed = None if query.statuses is None else _INDEXED.get(frozenset(query.statuses))
    # Where no index serves, the sign has SQLite read on until the page is full, and not sort the whole space.
    is_space = "+space = ?" if indexed is None and query.owner is None else "space = ?"
    wanted: list[tuple[str, Any]] = [(is_space, space), ("number > ?", query.after)]
    exact = [(column, getattr(query, column)) for column in EXACT]
    wanted += [(f"{column} = ?", value) for column, value in exact if value is not None]
    if query.before is not None:
        wanted.append(("number < ?", query.before))
    if query.accepted_before is not None:
        wanted.append(("accepted_at < ?", query.accepted_before))
    conditions, values = [each for each, _ in wanted], [value for _, value in wanted]
    for column, choices in (("status", query.statuses if indexed is None else None), ("kind", query.kinds)):
        if choices is not None:
            conditions.append(f"{column} IN ({', '.join('?' * len(choices))})")
            values += map(str, choices)
    conditions += [_IS_MESSAGE] if indexed is None else [_IS_MESSAGE, indexed]
    order = "number DESC" if query.newest_first else "number"
    statement = f"SELECT {COLUMNS} FROM ledger_entry WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT ?"
    return statement, (*values, query.limit)


def _queues(connection: sqlite3.Connection, space: int, agents: Sequence[str], most: int) -> dict[str, AgentQueue]:
    found = {agent: connection.execute(_QUEUE, (space, agent, most)).fetchone() for agent in agents}
    return {agent: AgentQueue(*row) for agent, row in found.items() if row[0]}


def _figures(connection: sqlite3.Connection, space: int, by_status: bool) -> dict[str, Any]:
    count = f"SELECT status, count(*) FROM ledger_entry WHERE +space = ? AND {_IS_MESSAGE} GROUP BY status"
    counts = connection.execute(count, (space,)).fetchall() if by_status else ()
    depths = connection.execute(
        f"SELECT target, count(*), min(accepted_at) FROM ledger_entry WHERE space = ? AND {IS_OPEN} AND {_IS_MESSAGE} "
        "GROUP BY target",
        (space,),
    )
    agents = connection.execute(
        "SELECT id, process IS NOT NULL, epoch, version FROM ledger_agent WHERE space = ?", (space,)
    )
    return {
        "byStatus": dict(counts),
        "open": {target: {"depth": depth, "oldest": oldest} for target, depth, oldest in depths},
        "agents": {
            agent: {"isHeld": bool(held), "epoch": epoch, "version": version} for agent, held, epoch, version in agents
        },
    }


def _verify(connection: sqlite3.Connection, space: int) -> list[str]:
    """Everything that contradicts the rules of the ledger."""
    return [words.format(*row) for words, query in _CHECKS for row in connection.execute(query, (space,))]
