"""The `ActionRequests` of a database, in whose tables their messages are as well."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from dragoman.adapters.sqlite_bus import SqliteBus
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_dead_letters import SqliteDeadLetters
from dragoman.adapters.sqlite_documents import note_event
from dragoman.adapters.sqlite_gateway import SqliteSigningKeys
from dragoman.adapters.sqlite_kept_answers import keep_less, keep_more
from dragoman.clock import Clock
from dragoman.gateway.port import Nonce
from dragoman.gateway.requests import (
    STREAM,
    KeptRequest,
    MakeReply,
    RequestKey,
    RequestStatus,
    Settled,
    kept_until,
    request_conflict,
)
from dragoman.knowledge.kept_answers import SMALLEST_CHARGE, charge_of
from dragoman.knowledge.port import AuditEvent
from dragoman.messaging.bus import BusDelivery, BusMessage

if TYPE_CHECKING:
    import sqlite3

    from dragoman.adapters.sqlite_writer import Transaction

_FIND = (
    "SELECT tenant, principal, request_id, fingerprint, status, http_status, body FROM action_request "
    "WHERE tenant = ? AND principal = ? AND request_id = ?"
)
_ADD = (
    "INSERT INTO action_request (tenant, principal, request_id, fingerprint, status, charge) "
    "VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (tenant, principal, request_id) DO NOTHING"
)
_CHANGE = (
    "UPDATE action_request SET status = ?, http_status = ?, body = ?, forget_at = ? "
    "WHERE tenant = ? AND principal = ? AND request_id = ?"
)
_HELD_BEFORE = (
    "SELECT b.headers FROM bus_message m JOIN bus_body b ON b.number = m.number "
    "WHERE m.state = 'held' AND m.subject = ? AND m.number < ?"
)
_CHARGE = "SELECT charge FROM action_request WHERE tenant = ? AND principal = ? AND request_id = ?"
_SET_CHARGE = "UPDATE action_request SET charge = ? WHERE tenant = ? AND principal = ? AND request_id = ?"
_OLD = (
    "SELECT tenant, principal, request_id, charge FROM action_request WHERE forget_at <= ? ORDER BY forget_at LIMIT ?"
)
_FORGET = "DELETE FROM action_request WHERE tenant = ? AND principal = ? AND request_id = ?"


class SqliteActionRequests:
    """Implements `ActionRequests`."""

    def __init__(
        self,
        database: SqliteDatabase,
        bus: SqliteBus,
        dead: SqliteDeadLetters,
        keys: SqliteSigningKeys,
        clock: Clock,
    ) -> None:
        self._database = database
        self._bus = bus
        self._dead = dead
        self._keys = keys
        self._clock = clock

    async def accept(
        self,
        request: KeptRequest,
        message: BusMessage,
        reply_again: MakeReply | None = None,
        nonce: Nonce | None = None,
        came_in: BusDelivery | None = None,
    ) -> KeptRequest | None:
        def write(transaction: Transaction) -> KeptRequest | None:
            if nonce is not None and not self._keys.spend_in(nonce, transaction):
                return None
            known = None
            charge = 0 if request.most_kept is None else SMALLEST_CHARGE
            if transaction.execute(_ADD, (*request.key, request.fingerprint, request.status, charge)).rowcount == 1:
                if request.most_kept is not None:
                    keep_more(transaction, request.key.tenant, charge, request.most_kept)
                self._bus.publish_in(transaction, message)
            else:
                known = _find(request.key, transaction)
                if known is not None and known.fingerprint != request.fingerprint:
                    raise request_conflict()
            if came_in is not None and not self._bus.ack_in(transaction, came_in):
                raise _DeliveredAgain
            if known is not None and known.body is not None and reply_again is not None:
                self._bus.publish_in(transaction, reply_again(known.body))
            return request if known is None else known

        try:
            return await self._database.write(write)
        except _DeliveredAgain:
            return replace(request, is_new=False)

    async def find(self, tenants: Set[str], principal: str, request_id: str) -> KeptRequest | None:
        def read(connection: sqlite3.Connection) -> KeptRequest | None:
            found = (_find(RequestKey(each, principal, request_id), connection) for each in sorted(tenants))
            return next((each for each in found if each is not None), None)

        return await self._database.read(read)

    async def is_behind(self, delivery: BusDelivery) -> bool:
        stream = delivery.message.headers.get(STREAM)

        def read(connection: sqlite3.Connection) -> bool:
            rows = connection.execute(_HELD_BEFORE, (delivery.message.subject, delivery.number))
            return any(msgspec.json.decode(headers).get(STREAM) == stream for (headers,) in rows)

        return stream is not None and await self._database.read(read)

    async def settle(self, delivery: BusDelivery, settled: Settled, nonce: Nonce | None = None) -> bool:
        try:
            return await self._database.write(partial(self._settle, delivery, settled, nonce))
        except _DeliveredAgain:
            return False

    def _settle(self, delivery: BusDelivery, settled: Settled, nonce: Nonce | None, transaction: Transaction) -> bool:
        if nonce is not None and not self._keys.spend_in(nonce, transaction):
            return False
        match settled.status:
            case RequestStatus.RETRYING:
                is_held = self._bus.retry_in(transaction, delivery, settled.after_seconds, settled.error)
            case RequestStatus.FAILED:
                is_held = self._bus.give_up_in(transaction, delivery, settled.error)
            case _:
                is_held = self._bus.ack_in(transaction, delivery)
        if not is_held:
            raise _DeliveredAgain
        if settled.reply is not None:
            self._bus.publish_in(transaction, settled.reply)
        if settled.request is not None:
            until = kept_until(settled.status, self._clock.now().timestamp())
            values = settled.status, settled.http_status, settled.body, until
            transaction.execute(_CHANGE, (*values, *settled.request))
            _count(settled, settled.request, transaction)
        return True

    async def redrive(
        self, number: int, headers: Mapping[str, str] | None, request: RequestKey | None, event: AuditEvent
    ) -> int | None:
        def write(transaction: Transaction) -> int | None:
            made = self._dead.redrive_in(transaction, number, headers)
            if made is not None:
                if request is not None:
                    transaction.execute(_CHANGE, (RequestStatus.ACCEPTED, None, None, None, *request))
                note_event(transaction, event)
            return made

        return await self._database.write(write)

    async def forget(self, limit: int, until: float | None = None) -> int:
        values = self._clock.now().timestamp() if until is None else until, limit

        def write(transaction: Transaction) -> int:
            old = transaction.execute(_OLD, values).fetchall()
            for *key, charge in old:
                transaction.execute(_FORGET, key)
                keep_less(transaction, key[0], charge)
            return len(old)

        return await self._database.write(write)


class _DeliveredAgain(Exception):
    """Undoes a transaction: somebody else has the delivery by now."""


def _count(settled: Settled, key: RequestKey, transaction: Transaction) -> None:
    """Count an answer, and the reply that repeats it, among those that are kept for its tenant."""
    if settled.most_kept is None or settled.body is None:
        return
    charge = charge_of(len(settled.body), 0 if settled.reply is None else len(settled.reply.body))
    for (counted,) in transaction.execute(_CHARGE, key).fetchall():
        keep_more(transaction, key.tenant, charge - counted, settled.most_kept)
        transaction.execute(_SET_CHARGE, (charge, *key))


def _find(key: RequestKey, connection: Transaction | sqlite3.Connection) -> KeptRequest | None:
    row = connection.execute(_FIND, key).fetchone()
    if row is None:
        return None
    return KeptRequest(
        key=RequestKey(*row[:3]),
        fingerprint=row[3],
        status=RequestStatus(row[4]),
        http_status=row[5],
        body=row[6],
        is_new=False,
    )
