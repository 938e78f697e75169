"""The points at which a server with requests that are carried out later can be made to die.

A request is accepted over HTTP or from the bus, a message is claimed, its action is carried out, and its end is stored:
the request is settled, or refused. Each of these is asked for, written, committed and known, as in `points.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from chaos.action_points import PointStorage, telling_of, told_around
from chaos.points import STEPS, Pass, tell_written
from dragoman.adapters.sqlite_bus import SqliteBus
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_requests import SqliteActionRequests
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.gateway.port import Nonce
from dragoman.gateway.requests import ActionRequests, KeptRequest, MakeReply, RequestStatus, Settled
from dragoman.messaging.bus import Bus, BusDelivery, BusMessage

T = TypeVar("T")

_FIRST = (
    "accept committed",
    "settle written",
    "bus accept committed",
    "claim committed",
    "create committed",
    "settle committed",
    "accept written",
    "refuse written",
    "bus accept written",
    "update committed",
    "claim known",
    "refuse committed",
)
"""The points that even a short run reaches."""
_OPERATIONS = ("accept", "bus accept", "claim", "create", "update", "settle", "refuse")
_ALL = (f"{operation} {step}" for operation in _OPERATIONS for step in STEPS)
DELIVERY_POINTS = tuple(point for point in dict.fromkeys((*_FIRST, *_ALL)) if point != "claim asked")
"""Whether there is something to claim is known once the statements have run."""


class DeliveryStorage(PointStorage):
    """A storage whose bus and requests tell which points they pass, too."""

    def _make_ports(self) -> dict[type, Any]:
        ports = super()._make_ports()
        assert self._database is not None
        assert self._bus is not None
        claims = cast(SqliteDatabase, _ClaimsTelling(self._database, self._told))
        self._bus = SqliteBus(claims, self._bus._process, self._clock)

        def requests_for(operation: str) -> SqliteActionRequests:
            made: SqliteActionRequests = ports[ActionRequests]
            assert self._bus is not None
            database = cast(SqliteDatabase, telling_of(made._database, operation, self._told))
            return SqliteActionRequests(database, self._bus, made._dead, made._keys, self._clock)

        requests = PointRequests(ports[ActionRequests], requests_for, self._told)
        return {**ports, Bus: self._bus, ActionRequests: requests}


class PointRequests:
    """Implements `ActionRequests`: tells when a request is accepted, and when it is settled or refused."""

    def __init__(
        self, requests: ActionRequests, requests_for: Callable[[str], SqliteActionRequests], told: Pass
    ) -> None:
        self._requests_for = requests_for
        self._told = told
        self.find, self.is_behind = requests.find, requests.is_behind
        self.redrive, self.forget = requests.redrive, requests.forget

    async def accept(
        self,
        request: KeptRequest,
        message: BusMessage,
        reply_again: MakeReply | None = None,
        nonce: Nonce | None = None,
        came_in: BusDelivery | None = None,
    ) -> KeptRequest | None:
        operation = "accept" if came_in is None else "bus accept"
        accepting = self._requests_for(operation).accept(request, message, reply_again, nonce, came_in)
        return await told_around(operation, accepting, self._told)

    async def settle(self, delivery: BusDelivery, settled: Settled, nonce: Nonce | None = None) -> bool:
        operation = "refuse" if settled.status is RequestStatus.FAILED else "settle"
        settling = self._requests_for(operation).settle(delivery, settled, nonce)
        return await told_around(operation, settling, self._told)


class _ClaimsTelling:
    """A database that tells which writes have claimed a message."""

    def __init__(self, database: SqliteDatabase, told: Pass) -> None:
        self._database = database
        self._told = told

    def read(self, function: Callable[[sqlite3.Connection], T]) -> Awaitable[T]:
        return self._database.read(function)

    async def write(self, function: Callable[[Transaction], T]) -> T:
        def run(transaction: Transaction) -> T:
            value = function(transaction)
            if _is_claim(value):
                tell_written("claim", transaction, self._told)
            return value

        value = await self._database.write(run)
        if _is_claim(value):
            self._told("claim known")
        return value


def _is_claim(value: Any) -> bool:
    """Of all that a bus writes, only claims return deliveries."""
    return isinstance(value, tuple) and bool(value[0])
