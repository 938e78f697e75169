"""The rows of artifacts, and the keys of links to them, in a database that several processes may share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_kept_answers import keep_less, keep_more
from dragoman.errors import OverQuota, StorageBusy
from dragoman.gateway.objects import CLAIM_SECONDS, GOING_SECONDS, LinkKey, StoredObject

if TYPE_CHECKING:
    import sqlite3

    from dragoman.adapters.sqlite_writer import Transaction

_CLAIMED, _COMPLETE, _GOING = 0, 1, 2
_STATE = "SELECT state, is_answer, charge FROM artifact WHERE key = ?"
_TOTAL = "SELECT charge FROM artifact_total WHERE tenant = ?"
_CLAIM = (
    "INSERT INTO artifact (key, tenant, sha256, mime, size, charge, state, uploaded_at, expires_at, is_answer) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_SENT_AFTER_ALL = "UPDATE artifact SET is_answer = 0 WHERE key = ?"
_CLAIM_AGAIN = "UPDATE artifact SET expires_at = max(expires_at, ?) WHERE key = ?"
_COUNT = (
    "INSERT INTO artifact_total (tenant, charge) VALUES (?, ?) "
    "ON CONFLICT (tenant) DO UPDATE SET charge = charge + excluded.charge"
)
_COMPLETED = (
    f"UPDATE artifact SET state = {_COMPLETE}, mime = ?, uploaded_at = ?, "
    f"expires_at = CASE state WHEN {_COMPLETE} THEN max(expires_at, ?) ELSE ? END WHERE key = ? AND state != {_GOING}"
)
_FIND = (
    "SELECT tenant, sha256, mime, size, uploaded_at, expires_at FROM artifact "
    f"WHERE key = ? AND state = {_COMPLETE} AND expires_at > ?"
)
_PIN = f"UPDATE artifact SET expires_at = max(expires_at, ?) WHERE key = ? AND state = {_COMPLETE} AND expires_at > ?"
_RELEASE = (
    f"UPDATE artifact SET expires_at = ? WHERE key = ? AND state = {_COMPLETE} AND uploaded_at = ? AND expires_at = ?"
)
_CONDEMN = (
    "INSERT INTO artifact (key, tenant, sha256, mime, size, charge, state, uploaded_at, expires_at) "
    f"VALUES (?, '', '', '', 0, 0, {_GOING}, ?, ?) ON CONFLICT (key) DO NOTHING"
)
_EXPIRED = "SELECT key FROM artifact WHERE expires_at <= ? ORDER BY expires_at LIMIT ?"
_MARK = f"UPDATE artifact SET state = {_GOING}, expires_at = ? WHERE key = ?"
_CHARGE = f"SELECT tenant, charge, is_answer FROM artifact WHERE key = ? AND state = {_GOING}"
_FORGET = "DELETE FROM artifact WHERE key = ?"
_UNCOUNT = "UPDATE artifact_total SET charge = charge - ? WHERE tenant = ?"
_FORGET_TOTAL = "DELETE FROM artifact_total WHERE tenant = ? AND charge <= 0"
_KEYS: Final = "SELECT kid, secret, created_at FROM artifact_link_key ORDER BY created_at DESC, kid"


class SqliteObjectRecords:
    """Implements `ObjectRecords` and `ObjectExpiry`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def claim(self, entry: StoredObject, limit: int, now: float) -> bool:
        return await self._database.write(partial(_claim, entry, limit, now))

    async def complete(self, entry: StoredObject) -> bool:
        def write(transaction: Transaction) -> bool:
            values = entry.mime, entry.uploaded_at, entry.expires_at, entry.expires_at, entry.key
            return transaction.execute(_COMPLETED, values).rowcount == 1

        return await self._database.write(write)

    async def find(self, key: str, now: float) -> StoredObject | None:
        def read(connection: sqlite3.Connection) -> StoredObject | None:
            row = connection.execute(_FIND, (key, now)).fetchone()
            if row is None:
                return None
            tenant, sha256, mime, size, uploaded_at, expires_at = row
            return StoredObject(
                tenant=tenant, sha256=sha256, mime=mime, size=size, uploaded_at=uploaded_at, expires_at=expires_at
            )

        return await self._database.read(read)

    async def pin(self, key: str, until: float, now: float) -> bool:
        return await self._changes_one(_PIN, until, key, now)

    async def release(self, entry: StoredObject, now: float) -> bool:
        return await self._changes_one(_RELEASE, now, entry.key, entry.uploaded_at, entry.expires_at)

    async def condemn(self, keys: Sequence[str], now: float) -> int:
        def write(transaction: Transaction) -> int:
            return sum(transaction.execute(_CONDEMN, (key, now, now)).rowcount for key in keys)

        return await self._database.write(write)

    async def expire(self, now: float, limit: int) -> list[str]:
        def write(transaction: Transaction) -> list[str]:
            keys = [str(key) for (key,) in transaction.execute(_EXPIRED, (now, limit)).fetchall()]
            for key in keys:
                transaction.execute(_MARK, (now + GOING_SECONDS, key))
            return keys

        return await self._database.write(write)

    async def forget(self, keys: Sequence[str]) -> None:
        def write(transaction: Transaction) -> None:
            for key in keys:
                for tenant, charge, is_answer in transaction.execute(_CHARGE, (key,)).fetchall():
                    transaction.execute(_FORGET, (key,))
                    if is_answer:
                        keep_less(transaction, tenant, charge)
                    else:
                        transaction.execute(_UNCOUNT, (charge, tenant))
                        transaction.execute(_FORGET_TOTAL, (tenant,))

        await self._database.write(write)

    async def _changes_one(self, statement: str, *values: object) -> bool:
        return await self._database.write(lambda transaction: transaction.execute(statement, values).rowcount == 1)


class SqliteLinkKeys:
    """Implements `LinkKeys`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def all(self) -> list[LinkKey]:
        return await self._database.read(lambda connection: [LinkKey(*row) for row in connection.execute(_KEYS)])

    async def renew(self, fresh: LinkKey, newest_from: float, oldest_from: float) -> list[LinkKey]:
        def write(transaction: Transaction) -> list[LinkKey]:
            transaction.execute("DELETE FROM artifact_link_key WHERE created_at < ?", (oldest_from,))
            newest = transaction.execute("SELECT max(created_at) FROM artifact_link_key").fetchone()[0]
            if newest is None or newest < newest_from:
                values = fresh.kid, fresh.secret, fresh.created_at
                transaction.execute("INSERT INTO artifact_link_key (kid, secret, created_at) VALUES (?, ?, ?)", values)
            return [LinkKey(*row) for row in transaction.execute(_KEYS)]

        return await self._database.write(write)


def _claim(entry: StoredObject, limit: int, now: float, transaction: Transaction) -> bool:
    until = now + CLAIM_SECONDS
    found = transaction.execute(_STATE, (entry.key,)).fetchone()
    if found is not None:
        state, is_answer, charge = found
        if state == _GOING:
            raise StorageBusy("the artifact is being deleted")
        if is_answer and not entry.is_answer:
            _count(entry, limit, transaction)
            keep_less(transaction, entry.tenant, charge)
            transaction.execute(_SENT_AFTER_ALL, (entry.key,))
        transaction.execute(_CLAIM_AGAIN, (until, entry.key))
        return False
    _count(entry, limit, transaction)
    values = entry.key, entry.tenant, entry.sha256, entry.mime, entry.size, entry.charge
    transaction.execute(_CLAIM, (*values, _CLAIMED, entry.uploaded_at, until, entry.is_answer))
    return True


def _count(entry: StoredObject, limit: int, transaction: Transaction) -> None:
    """Count an object against the quota that it belongs to."""
    if entry.is_answer:
        keep_more(transaction, entry.tenant, entry.charge, limit)
        return
    row = transaction.execute(_TOTAL, (entry.tenant,)).fetchone()
    total = entry.charge + (0 if row is None else int(row[0]))
    if total > limit:
        raise OverQuota(limit, total)
    transaction.execute(_COUNT, (entry.tenant, entry.charge))
