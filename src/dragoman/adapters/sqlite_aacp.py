"""The `AACPRecords` of a database that several processes may share. Every statement is answered from an index.

Each operation is one write, which the database commits as a whole; only a purge is several, so that others can write in
between.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from dragoman.adapters.sqlite_aacp_rows import (
    MESSAGE_COLUMNS,
    REQUEST_COLUMNS,
    envelope_in,
    message_in,
    message_row,
    microseconds,
    request_in,
    request_row,
)
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_ledger_rows import SqliteSpace
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.agents.aacp.envelope import AACPEnvelope, AACPMessageType, AACPOutcome
from dragoman.agents.aacp.records import DEFAULT_TTL_MS, AACPMessageRecord, AACPPersistenceAdapter, AACPRequestRecord
from dragoman.clock import Clock, iso_milliseconds
from dragoman.errors import StructuredError

MOST_PURGED_AT_ONCE = 1000
_END_OF_TIME = 2**63 - 1

_ADD_REQUEST = (
    f"INSERT INTO aacp_request (space, side, {REQUEST_COLUMNS}) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_OF_ID = "WHERE space = ? AND side = ? AND request_id = ? AND message_type = ? ORDER BY number LIMIT 1"
_OF_OWNER = "WHERE space = ? AND side = ? AND request_id = ? AND message_type = ? AND owner = ?"
_KNOWN_MESSAGE = f"SELECT {MESSAGE_COLUMNS} FROM aacp_message WHERE space = ? AND side = ? AND message_id = ?"
_ADD_MESSAGE = (
    f"INSERT INTO aacp_message (space, side, {MESSAGE_COLUMNS}) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (space, side, message_id) DO "
)
_REPLACE_MESSAGE = (
    f"{_ADD_MESSAGE} UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in MESSAGE_COLUMNS.split(', '))} "
    "WHERE status = 'UNKNOWN' OR excluded.status != 'UNKNOWN'"
)
_RAISE = (
    "INSERT INTO aacp_pair (space, side, source, target, {0}) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (space, side, source, target) DO UPDATE SET {0} = max({0}, excluded.{0})"
)
_NUMBER = "SELECT {0} FROM aacp_pair WHERE space = ? AND side = ? AND source = ? AND target = ?"
_UNACKNOWLEDGED = (
    "SELECT envelope FROM aacp_message WHERE space = ? AND side = ? AND status = 'UNKNOWN' "
    f"AND source = ? AND target = ? AND seq > coalesce(({_NUMBER.format('last_ack')}), 0) ORDER BY seq, number"
)
_PENDING = (
    f"SELECT {REQUEST_COLUMNS} FROM aacp_request WHERE space = ? AND side = ? AND status = 'UNKNOWN' "
    "AND message_type = 'REQUEST' AND recorded < ? ORDER BY number"
)
_IN_STATE = (
    f"SELECT {MESSAGE_COLUMNS} FROM aacp_message WHERE space = ? AND side = ? AND status = ? AND recorded < ? "
    "ORDER BY number"
)
_PURGE = (
    "DELETE FROM {0} WHERE number IN "
    f"(SELECT number FROM {{0}} WHERE space = ? AND side = ? AND expires <= ? LIMIT {MOST_PURGED_AT_ONCE})"
)


class SqliteAACPRecords:
    """Implements `AACPRecords` for one space of a database. Nothing is opened before the first use."""

    def __init__(self, database: SqliteDatabase, space: str, clock: Clock) -> None:
        self._database = database
        self._space = space
        self._clock = clock

    def for_agent(self, agent_id: str, default_ttl_ms: int = DEFAULT_TTL_MS) -> AACPPersistenceAdapter:
        return SqliteAACPPersistence(self._database, self._space, agent_id, self._clock, default_ttl_ms)


class SqliteAACPPersistence:
    """Implements `AACPPersistenceAdapter` for the endpoint of one agent, its `side`."""

    def __init__(
        self, database: SqliteDatabase, space: str, side: str, clock: Clock, default_ttl_ms: int = DEFAULT_TTL_MS
    ) -> None:
        self._database = database
        self._space = SqliteSpace(database, space)
        self._side = side
        self._clock = clock
        self._ttl = timedelta(milliseconds=default_ttl_ms)

    async def put_request_record(self, record: AACPRequestRecord) -> AACPRequestRecord | None:
        row = request_row(record, self._expiry(record.expires_at))

        def put(writing: Transaction) -> AACPRequestRecord | None:
            space = self._space.of(writing)
            if writing.execute(_ADD_REQUEST, (space, self._side, *row)).rowcount == 1:
                return None
            return _find_request(writing, space, self._side, record.request_id, record.owner, record.message_type)

        return await self._database.write(put)

    async def get_request_record(
        self, request_id: str, owner: str | None = None, message_type: AACPMessageType = AACPMessageType.REQUEST
    ) -> AACPRequestRecord | None:
        return await self._space.read(_find_request, self._side, request_id, owner, message_type)

    async def put_message_record(self, record: AACPMessageRecord, *, replace: bool = False) -> AACPMessageRecord | None:
        row = message_row(record, self._expiry(record.expires_at))
        statement = _REPLACE_MESSAGE if replace else f"{_ADD_MESSAGE} NOTHING"

        def put(writing: Transaction) -> AACPMessageRecord | None:
            space = self._space.of(writing)
            known = _find_message(writing, space, self._side, record.message_id)
            writing.execute(statement, (space, self._side, *row))
            return known

        return await self._database.write(put)

    async def get_message_record(self, message_id: str) -> AACPMessageRecord | None:
        return await self._space.read(_find_message, self._side, message_id)

    async def mark_completed(
        self, request_id: str, outcome: AACPOutcome, completion_ref: str | None = None, *, owner: str | None = None
    ) -> bool:
        return await self._settle("status = ?, completion_ref = ?", (outcome, completion_ref), request_id, owner)

    async def mark_failed(self, request_id: str, error: StructuredError, *, owner: str | None = None) -> bool:
        values = (AACPOutcome.FAILED, msgspec.json.encode(error))
        return await self._settle("status = ?, error = ?", values, request_id, owner)

    async def get_last_sequence(self, source_agent_id: str, target_agent_id: str) -> int:
        return await self._space.read(_read_number, "last_seq", self._side, source_agent_id, target_agent_id)

    async def update_last_sequence(self, source_agent_id: str, target_agent_id: str, seq: int) -> None:
        await self._raise_number("last_seq", source_agent_id, target_agent_id, seq)

    async def get_last_ack(self, source_agent_id: str, target_agent_id: str) -> int:
        return await self._space.read(_read_number, "last_ack", self._side, source_agent_id, target_agent_id)

    async def update_last_ack(self, source_agent_id: str, target_agent_id: str, ack: int) -> None:
        await self._raise_number("last_ack", source_agent_id, target_agent_id, ack)

    async def get_unacknowledged_messages(self, source_agent_id: str, target_agent_id: str) -> list[AACPEnvelope]:
        return await self._space.read(_unacknowledged, self._side, source_agent_id, target_agent_id)

    async def list_pending_requests(self, older_than: datetime | None = None) -> list[AACPRequestRecord]:
        return await self._space.read(_pending, self._side, _before(older_than))

    async def list_messages_in_state(
        self, outcome: AACPOutcome, older_than: datetime | None = None
    ) -> list[AACPMessageRecord]:
        return await self._space.read(_in_state, self._side, outcome, _before(older_than))

    async def purge_expired(self, now: datetime) -> int:
        purged, until = 0, microseconds(now)
        for table in ("aacp_request", "aacp_message"):
            while step := await self._database.write(partial(self._purge, table, until)):
                purged += step
        return purged

    def _expiry(self, given: str | None) -> str:
        return iso_milliseconds(self._clock.now() + self._ttl) if given is None else given

    async def _settle(self, change: str, values: tuple[Any, ...], request_id: str, owner: str | None) -> bool:
        found, asked = _which_request(self._side, request_id, owner, AACPMessageType.REQUEST)
        statement = (
            f"UPDATE aacp_request SET {change} "
            f"WHERE number = (SELECT number FROM aacp_request {found}) AND status = 'UNKNOWN'"
        )

        def settle(writing: Transaction) -> bool:
            return writing.execute(statement, (*values, self._space.of(writing), *asked)).rowcount == 1

        return await self._database.write(settle)

    async def _raise_number(self, column: str, source: str, target: str, number: int) -> None:
        def update(writing: Transaction) -> None:
            pair = (self._space.of(writing), self._side, source, target)
            writing.execute(_RAISE.format(column), (*pair, number))

        await self._database.write(update)

    def _purge(self, table: str, until: int, writing: Transaction) -> int:
        return writing.execute(_PURGE.format(table), (self._space.of(writing), self._side, until)).rowcount


def _before(older_than: datetime | None) -> int:
    return _END_OF_TIME if older_than is None else microseconds(older_than)


def _which_request(
    side: str, request_id: str, owner: str | None, message_type: AACPMessageType
) -> tuple[str, tuple[str, ...]]:
    """The condition that finds a request within a space, and its values."""
    asked = (side, request_id, message_type)
    return (_OF_ID, asked) if owner is None else (_OF_OWNER, (*asked, owner))


def _find_request(
    connection: sqlite3.Connection | Transaction,
    space: int,
    side: str,
    request_id: str,
    owner: str | None,
    message_type: AACPMessageType,
) -> AACPRequestRecord | None:
    found, asked = _which_request(side, request_id, owner, message_type)
    row = connection.execute(f"SELECT {REQUEST_COLUMNS} FROM aacp_request {found}", (space, *asked)).fetchone()
    return None if row is None else request_in(row)


def _find_message(
    connection: sqlite3.Connection | Transaction, space: int, side: str, message_id: str
) -> AACPMessageRecord | None:
    row = connection.execute(_KNOWN_MESSAGE, (space, side, message_id)).fetchone()
    return None if row is None else message_in(row)


def _read_number(connection: sqlite3.Connection, space: int, column: str, side: str, source: str, target: str) -> int:
    row = connection.execute(_NUMBER.format(column), (space, side, source, target)).fetchone()
    return int(row[0]) if row else 0


def _unacknowledged(
    connection: sqlite3.Connection, space: int, side: str, source: str, target: str
) -> list[AACPEnvelope]:
    rows = connection.execute(_UNACKNOWLEDGED, (space, side, source, target, space, side, source, target))
    return [envelope_in(encoded) for (encoded,) in rows]


def _pending(connection: sqlite3.Connection, space: int, side: str, before: int) -> list[AACPRequestRecord]:
    return [request_in(row) for row in connection.execute(_PENDING, (space, side, before))]


def _in_state(
    connection: sqlite3.Connection, space: int, side: str, outcome: AACPOutcome, before: int
) -> list[AACPMessageRecord]:
    return [message_in(row) for row in connection.execute(_IN_STATE, (space, side, outcome, before))]
