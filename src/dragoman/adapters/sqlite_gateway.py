"""The `SigningKeys` and `Quotas` of a database that several processes may share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_documents import note_event
from dragoman.gateway.port import SigningKey
from dragoman.knowledge.port import AuditEvent

if TYPE_CHECKING:
    import sqlite3

    from dragoman.adapters.sqlite_writer import Transaction

_KEY = "SELECT kid, public, tenant, roles, created_at, revoked_at FROM signing_key"
_ADD = (
    "INSERT INTO signing_key (kid, public, tenant, roles, created_at, revoked_at) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (kid) DO NOTHING"
)
_REVOKE = "UPDATE signing_key SET revoked_at = ? WHERE kid = ? AND revoked_at IS NULL"
_SPEND = (
    "INSERT INTO signing_nonce (kid, nonce, until) SELECT kid, ?, ? FROM signing_key "
    "WHERE kid = ? AND revoked_at IS NULL ON CONFLICT (kid, nonce) DO NOTHING"
)
# Two out for one in keeps up with any number of them.
_FORGET_NONCES = (
    "DELETE FROM signing_nonce WHERE (kid, nonce) IN "
    "(SELECT kid, nonce FROM signing_nonce WHERE until <= ? ORDER BY until LIMIT 2)"
)
_TAKEN = "SELECT taken FROM gateway_quota WHERE bucket = ? AND minute = ?"
_TAKE = (
    "INSERT INTO gateway_quota (bucket, minute, taken) VALUES (?, ?, ?) "
    "ON CONFLICT (bucket, minute) DO UPDATE SET taken = excluded.taken"
)
_FORGET_QUOTAS = (
    "DELETE FROM gateway_quota WHERE (bucket, minute) IN "
    "(SELECT bucket, minute FROM gateway_quota WHERE minute < ? ORDER BY minute LIMIT 2)"
)


class SqliteSigningKeys:
    """Implements `SigningKeys`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def add(self, key: SigningKey, event: AuditEvent | None = None) -> bool:
        roles = msgspec.json.encode(key.roles).decode()
        values = key.kid, key.public, key.tenant, roles, key.created_at, key.revoked_at
        return await self._change(_ADD, values, event)

    async def find(self, kid: str) -> SigningKey | None:
        found = await self._database.read(partial(_keys, f"{_KEY} WHERE kid = ?", (kid,)))
        return found[0] if found else None

    async def list(self) -> list[SigningKey]:
        return await self._database.read(partial(_keys, f"{_KEY} ORDER BY created_at, kid", ()))

    async def revoke(self, kid: str, at: float, event: AuditEvent | None = None) -> bool:
        return await self._change(_REVOKE, (at, kid), event)

    async def spend(self, kid: str, nonce: str, until: float, now: float) -> bool:
        def write(transaction: Transaction) -> bool:
            transaction.execute(_FORGET_NONCES, (now,))
            return transaction.execute(_SPEND, (nonce, until, kid)).rowcount == 1

        return await self._database.write(write)

    async def _change(self, statement: str, values: tuple[Any, ...], event: AuditEvent | None) -> bool:
        def write(transaction: Transaction) -> bool:
            is_changed = transaction.execute(statement, values).rowcount == 1
            if is_changed and event is not None:
                note_event(transaction, event)
            return is_changed

        return await self._database.write(write)


class SqliteQuotas:
    """Implements `Quotas`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def take(self, bucket: str, window: int, wanted: int, limit: int) -> tuple[int, int]:
        return await self._database.write(partial(_take, bucket, window, wanted, limit))


def _keys(statement: str, values: tuple[Any, ...], connection: sqlite3.Connection) -> list[SigningKey]:
    return [
        SigningKey(
            kid=kid,
            public=public,
            tenant=tenant,
            roles=tuple(msgspec.json.decode(roles)),
            created_at=created_at,
            revoked_at=revoked_at,
        )
        for kid, public, tenant, roles, created_at, revoked_at in connection.execute(statement, values)
    ]


def _take(bucket: str, window: int, wanted: int, limit: int, transaction: Transaction) -> tuple[int, int]:
    transaction.execute(_FORGET_QUOTAS, (window,))
    row = transaction.execute(_TAKEN, (bucket, window)).fetchone()
    taken = 0 if row is None else int(row[0])
    granted = max(0, min(wanted, limit - taken))
    if granted:
        transaction.execute(_TAKE, (bucket, window, taken + granted))
    return granted, taken + granted
