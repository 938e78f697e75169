"""The `Ledger` of a database that several processes may share."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_ledger_process import SqliteProcess
from dragoman.adapters.sqlite_ledger_rows import COLUMNS, IS_OPEN, SqliteSpace, entry_of
from dragoman.adapters.sqlite_ledger_works import Beginning, LedgerWorks
from dragoman.adapters.sqlite_watch import Watcher
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.agents.ledger import (
    Hold,
    LedgerEntry,
    NewEntry,
    Settlement,
)

_AGENT = "SELECT process, epoch, version FROM ledger_agent WHERE space = ? AND id = ?"
_HOLDER = (
    "SELECT p.id, p.until FROM ledger_agent a JOIN ledger_process p ON p.id = a.process WHERE a.space = ? AND a.id = ?"
)
_HOLD = (
    "INSERT INTO ledger_agent (space, id, process, epoch, version) VALUES (?, ?, ?, 1, 0) "
    "ON CONFLICT (space, id) DO UPDATE SET process = excluded.process, epoch = epoch + 1"
)
_CRASHED = (
    "UPDATE ledger_entry SET attempts = attempts + 1 WHERE number = (SELECT number FROM ledger_entry "
    f"WHERE space = ? AND target = ? AND {IS_OPEN} ORDER BY number LIMIT 1) AND status != 'running'"
)


class SqliteLedger:
    """Implements `Ledger` for one space of a database. Nothing is opened before the first use."""

    def __init__(self, database: SqliteDatabase, space: str, process: SqliteProcess | None = None) -> None:
        self._database = database
        self._space = SqliteSpace(database, space)
        self._process = process or SqliteProcess(database)
        self._elsewhere: set[str] = set()
        """The agents that another process held when this one last asked."""
        self._works = LedgerWorks(self._space, lambda: self._process.id)

    def accept(self, entry: NewEntry) -> Awaitable[LedgerEntry]:
        return self._database.write_together(self._works, entry)

    async def hold(self, agent: str) -> Hold | None:
        # Processes ask again and again for agents that others hold, and that must cost no write.
        if agent in self._elsewhere and await self._space.read(self._is_held, agent):
            return None
        hold = await self._database.write(partial(self._hold, agent))
        if hold is None:
            self._elsewhere.add(agent)
        else:
            self._elsewhere.discard(agent)
        return hold

    async def release(self, agents: Sequence[str]) -> None:
        await self._database.write(partial(self._release, agents))

    async def begin(self, number: int, agent: str, epoch: int) -> None:
        await self._database.write_together(self._works, Beginning(number, agent, epoch))

    def settle(self, settlement: Settlement) -> Awaitable[list[LedgerEntry]]:
        return self._database.write_together(self._works, settlement)

    async def waiting(self, agent: str, after: int, limit: int) -> list[LedgerEntry]:
        return await self._space.read(_waiting, agent, after, limit)

    async def news(self, after: int) -> tuple[list[LedgerEntry], int]:
        return await self._space.read(_news, after)

    async def state(self, agent: str) -> dict[str, bytes]:
        return await self._space.read(_state, agent)

    async def get(self, numbers: Sequence[int]) -> list[LedgerEntry]:
        return await self._space.read(_get, numbers)

    async def result(self, owner: str, request_id: str) -> bytes | None:
        return await self._space.read(_result, owner, request_id)

    def watch(
        self,
        changed: Callable[[], None],
        lost: Callable[[], None],
        lease_seconds: float,
        is_alive: Callable[[], bool],
    ) -> None:
        watcher = Watcher(changed=changed, lost=lost, is_alive=is_alive, lease_seconds=lease_seconds)
        self._process.watch(self, watcher)

    def look_often(self) -> Callable[[], None]:
        return self._process.look_often()

    async def close(self) -> None:
        await self._process.leave(self, self._give_back)

    def _hold(self, agent: str, writing: Transaction) -> Hold | None:
        space, me = self._space.of(writing), self._process.enlist(writing)
        row = writing.execute(_AGENT, (space, agent)).fetchone()
        process, epoch, version = row or (None, 0, 0)
        has_crashed = process is not None and process != me
        if process is not None and has_crashed and self._process.is_alive(process, writing):
            return None
        writing.execute(_HOLD, (space, agent, me))
        if has_crashed:
            # It may be what ended the process, and must not do so for ever.
            writing.execute(_CRASHED, (space, agent))
        state = writing.execute("SELECT key, value FROM ledger_state WHERE space = ? AND agent = ?", (space, agent))
        return Hold(agent, epoch + 1, version, dict(state.fetchall()), has_crashed)

    def _is_held(self, connection: sqlite3.Connection, space: int, agent: str) -> bool:
        """Whether another process holds an agent and is alive."""
        row = connection.execute(_HOLDER, (space, agent)).fetchone()
        return row is not None and row[0] != self._process.id and self._process.seems_alive(*row)

    def _release(self, agents: Sequence[str], writing: Transaction) -> None:
        space = self._space.of(writing)
        for agent in agents:
            writing.execute(
                "UPDATE ledger_agent SET process = NULL WHERE space = ? AND id = ? AND process = ?",
                (space, agent, self._process.id),
            )

    def _give_back(self, writing: Transaction) -> None:
        writing.execute("UPDATE ledger_agent SET process = NULL WHERE process = ?", (self._process.id,))


def _waiting(connection: sqlite3.Connection, space: int, agent: str, after: int, limit: int) -> list[LedgerEntry]:
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM ledger_entry WHERE space = ? AND target = ? AND number > ? AND {IS_OPEN} "
        "ORDER BY number LIMIT ?",
        (space, agent, after, limit),
    )
    return [entry_of(row) for row in rows]


def _news(connection: sqlite3.Connection, space: int, after: int) -> tuple[list[LedgerEntry], int]:
    (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM ledger_entry").fetchone()
    # The sign keeps SQLite from reading every open message instead of the few that are new.
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM ledger_entry WHERE number > ? AND +space = ? AND {IS_OPEN} ORDER BY number",
        (after, space),
    )
    return [entry_of(row) for row in rows], last


def _state(connection: sqlite3.Connection, space: int, agent: str) -> dict[str, bytes]:
    rows = connection.execute("SELECT key, value FROM ledger_state WHERE space = ? AND agent = ?", (space, agent))
    return dict(rows.fetchall())


def _get(connection: sqlite3.Connection, space: int, numbers: Sequence[int]) -> list[LedgerEntry]:
    query = f"SELECT {COLUMNS} FROM ledger_entry WHERE space = ? AND number = ?"
    found = [connection.execute(query, (space, number)).fetchone() for number in numbers]
    return [entry_of(row) for row in found if row is not None]


def _result(connection: sqlite3.Connection, space: int, owner: str, request_id: str) -> bytes | None:
    row = connection.execute(
        "SELECT payload, completion_ref FROM ledger_entry "
        "WHERE space = ? AND owner = ? AND request_id = ? AND kind = 'RESPONSE'",
        (space, owner, request_id),
    ).fetchone()
    if row is None:
        return None
    payload, ref = row
    if ref is not None:
        (payload,) = connection.execute("SELECT value FROM ledger_result WHERE ref = ?", (ref,)).fetchone()
    return bytes(payload)
