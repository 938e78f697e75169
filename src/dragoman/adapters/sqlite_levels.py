"""The `ServiceLevels` of a database that several processes may share: each adds to the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.slo.port import HOUR, LevelKey

if TYPE_CHECKING:
    import sqlite3

    from dragoman.adapters.sqlite_writer import Transaction

_ADD = (
    "INSERT INTO service_level (minute, tenant, action, caller, figure, bucket, count) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (minute, tenant, action, caller, figure, bucket) DO UPDATE SET count = count + excluded.count"
)
_READ = (
    "SELECT tenant, action, caller, figure, bucket, sum(count) FROM service_level WHERE minute >= ? "
    "GROUP BY tenant, action, caller, figure, bucket"
)
_OLD = (
    f"SELECT minute - minute % {HOUR}, tenant, action, caller, figure, bucket, sum(count) FROM service_level "
    f"WHERE minute < ? AND minute % {HOUR} GROUP BY 1, 2, 3, 4, 5, 6"
)
_FORGET_OLD = f"DELETE FROM service_level WHERE minute < ? AND minute % {HOUR}"
_FORGET = "DELETE FROM service_level WHERE minute < ?"


class SqliteServiceLevels:
    """Implements `ServiceLevels`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def add(self, minute: int, counts: Mapping[LevelKey, int]) -> None:
        await self._database.write(partial(_add, minute, dict(counts)))

    async def read(self, since: int) -> dict[LevelKey, int]:
        return await self._database.read(partial(_read, since))

    async def condense(self, minutes_before: int, hours_before: int) -> int:
        return await self._database.write(partial(_condense, minutes_before, hours_before))


def _add(minute: int, counts: Mapping[LevelKey, int], writing: Transaction) -> None:
    for key, count in counts.items():
        writing.execute(_ADD, (minute, *key, count))


def _read(since: int, connection: sqlite3.Connection) -> dict[LevelKey, int]:
    return {LevelKey(*key): count for *key, count in connection.execute(_READ, (since,))}


def _condense(minutes_before: int, hours_before: int, writing: Transaction) -> int:
    gone: int = writing.execute(_FORGET, (hours_before,)).rowcount
    hours = writing.execute(_OLD, (minutes_before,)).fetchall()
    gone += writing.execute(_FORGET_OLD, (minutes_before,)).rowcount
    for row in hours:
        writing.execute(_ADD, row)
    return gone
