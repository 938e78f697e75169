"""The `SigningKeys` and `Quotas` of a database that several processes may share."""

from __future__ import annotations

import asyncio
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_documents import note_event
from dragoman.adapters.sqlite_purge_clock import SqlitePurgeClock
from dragoman.gateway.port import Nonce, SigningKey
from dragoman.knowledge.port import AuditEvent

if TYPE_CHECKING:
    import sqlite3

    from dragoman.adapters.sqlite_writer import Transaction

_KEY = "SELECT kid, public, tenant, roles, created_at, revoked_at, line FROM signing_key"
_ADD = (
    "INSERT INTO signing_key (kid, public, tenant, roles, created_at, revoked_at, line) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (kid) DO NOTHING"
)
_REVOKE = "UPDATE signing_key SET revoked_at = ? WHERE kid = ? AND revoked_at IS NULL"
_SPEND = (
    "INSERT INTO signing_nonce (kid, nonce, until) SELECT kid, ?, ? FROM signing_key "
    "WHERE kid = ? AND revoked_at IS NULL ON CONFLICT (kid, nonce) DO NOTHING"
)
_FORGET_NONCES = (
    "DELETE FROM signing_nonce WHERE (kid, nonce) IN "
    "(SELECT kid, nonce FROM signing_nonce WHERE until <= ? ORDER BY until LIMIT ?)"
)
_MOST_FORGOTTEN = 500
"""At the expense of one request, which happens once a second, or with each request while there are more."""
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

    def __init__(self, database: SqliteDatabase, purge_clock: SqlitePurgeClock | None = None) -> None:
        """Without `purge_clock`, no nonce is forgotten."""
        self._database = database
        self._purge_clock = purge_clock
        self._forget_at = 0.0
        self._asked: dict[asyncio.AbstractEventLoop, tuple[set[str], asyncio.Task[dict[str, SigningKey]]]] = {}
        """The keys that are asked for, and the read that will find them, for each event loop."""

    async def add(self, key: SigningKey, event: AuditEvent | None = None) -> bool:
        roles = msgspec.json.encode(key.roles).decode()
        values = key.kid, key.public, key.tenant, roles, key.created_at, key.revoked_at, key.line
        return await self._change(_ADD, values, event)

    async def find(self, kid: str) -> SigningKey | None:
        loop = asyncio.get_running_loop()
        asked = self._asked.get(loop)
        if asked is None:
            kids: set[str] = set()
            asked = self._asked[loop] = kids, loop.create_task(self._find_all(loop, kids), context=Context())
        asked[0].add(kid)
        return (await asyncio.shield(asked[1])).get(kid)

    async def _find_all(self, loop: asyncio.AbstractEventLoop, kids: set[str]) -> dict[str, SigningKey]:
        """The keys that were asked for until the read begins. Later ones wait for the next: a key may be revoked."""
        del self._asked[loop]
        wanted = f"{_KEY} WHERE kid IN ({', '.join('?' * len(kids))})"
        found = await self._database.read(partial(_keys, wanted, tuple(kids)))
        return {key.kid: key for key in found}

    async def list(self) -> list[SigningKey]:
        return await self._database.read(partial(_keys, f"{_KEY} ORDER BY created_at, kid", ()))

    async def revoke(self, kid: str, at: float, event: AuditEvent | None = None) -> bool:
        return await self._change(_REVOKE, (at, kid), event)

    async def spend(self, nonce: Nonce) -> bool:
        return await self._database.write(partial(self.spend_in, nonce))

    def spend_in(self, nonce: Nonce, transaction: Transaction) -> bool:
        """The same within a transaction."""
        now = nonce.now
        if self._purge_clock is not None and not self._forget_at - 1 <= now < self._forget_at:  # On the one thread.
            values = self._purge_clock.now_in(transaction), _MOST_FORGOTTEN
            forgotten = transaction.execute(_FORGET_NONCES, values).rowcount
            self._forget_at = now + 1 if forgotten < _MOST_FORGOTTEN else now
        return transaction.execute(_SPEND, (nonce.nonce, nonce.until, nonce.kid)).rowcount == 1

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
            line=line,
        )
        for kid, public, tenant, roles, created_at, revoked_at, line in connection.execute(statement, values)
    ]


def _take(bucket: str, window: int, wanted: int, limit: int, transaction: Transaction) -> tuple[int, int]:
    transaction.execute(_FORGET_QUOTAS, (window,))
    row = transaction.execute(_TAKEN, (bucket, window)).fetchone()
    taken = 0 if row is None else int(row[0])
    granted = max(0, min(wanted, limit - taken))
    if granted:
        transaction.execute(_TAKE, (bucket, window, taken + granted))
    return granted, taken + granted
