"""The points at which a server with actions can be made to die.

A nonce is used, and an action is carried out. Each of these is asked for, written, committed and known, as in
`points.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, cast

from chaos.points import STEPS, Pass, tell_written
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_documents import SqliteDocuments
from dragoman.adapters.sqlite_gateway import SqliteSigningKeys
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.clock import Clock
from dragoman.gateway.port import Nonce, SigningKeys
from dragoman.knowledge.port import (
    ActionRequest,
    Applied,
    CreateDocument,
    DeleteDocument,
    DocumentChange,
    Documents,
    MoveDocument,
    UpdateDocument,
)
from dragoman.storage.migrations import Migration
from dragoman.storage.settings import StorageConfig

T = TypeVar("T")

_FIRST = (
    "create committed",
    "nonce committed",
    "update written",
    "create known",
    "move committed",
    "delete committed",
    "update committed",
    "nonce written",
)
"""The points that even a short run reaches."""
_CHANGES = {CreateDocument: "create", UpdateDocument: "update", MoveDocument: "move", DeleteDocument: "delete"}
_ALL = (f"{operation} {step}" for operation in ("nonce", *_CHANGES.values()) for step in STEPS)
ACTION_POINTS = tuple(dict.fromkeys((*_FIRST, *_ALL)))


class PointStorage(SqliteStorage):
    """A storage whose documents and keys tell which points they pass."""

    def __init__(self, told: Pass, config: StorageConfig, clock: Clock, migrations: Iterable[Migration]) -> None:
        super().__init__(config, clock, migrations)
        self._told = told

    def _make_ports(self) -> dict[type, Any]:
        ports = super()._make_ports()
        assert self._database is not None
        points = {
            Documents: PointDocuments(self._database, self._clock, self._told),
            SigningKeys: PointKeys(self._database, self._told),
        }
        return ports | points


class PointDocuments(SqliteDocuments):
    """Documents that tell when an action is carried out."""

    def __init__(self, database: SqliteDatabase, clock: Clock, told: Pass) -> None:
        super().__init__(database, clock)
        self._told = told

    async def carry_out(self, change: DocumentChange, request: ActionRequest) -> Applied:
        operation = _CHANGES[type(change)]
        telling = SqliteDocuments(telling_of(self._database, operation, self._told), self._clock)
        return await told_around(operation, telling.carry_out(change, request), self._told)


class PointKeys(SqliteSigningKeys):
    """Keys that tell when a nonce is used."""

    def __init__(self, database: SqliteDatabase, told: Pass) -> None:
        super().__init__(database)
        self._told = told

    async def spend(self, nonce: Nonce) -> bool:
        telling = SqliteSigningKeys(telling_of(self._database, "nonce", self._told))
        return await told_around("nonce", telling.spend(nonce), self._told)


async def told_around(operation: str, storing: Awaitable[T], told: Pass) -> T:
    """Tell that an operation is asked for, and when its caller knows that it is done."""
    told(f"{operation} asked")
    value = await storing
    told(f"{operation} known")
    return value


class _Telling:
    """The writes of one operation to a database."""

    def __init__(self, database: SqliteDatabase, operation: str, told: Pass) -> None:
        self._database = database
        self._operation = operation
        self._told = told

    def write(self, function: Callable[[Transaction], T], weight: int = 1) -> Awaitable[T]:
        def run(transaction: Transaction) -> T:
            value = function(transaction)
            tell_written(self._operation, transaction, self._told)
            return value

        return self._database.write(run, weight)


def telling_of(database: SqliteDatabase, operation: str, told: Pass) -> SqliteDatabase:
    """A database for one operation: it tells when that is written and committed."""
    return cast(SqliteDatabase, _Telling(database, operation, told))
