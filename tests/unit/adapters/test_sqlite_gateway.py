"""Signing keys in SQLite: what looking for them costs, and what a shared read must not hide."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_gateway import SqliteSigningKeys
from dragoman.agents.migrations import MIGRATIONS as LEDGER_MIGRATIONS
from dragoman.errors import StorageClosed
from dragoman.gateway.migrations import MIGRATIONS
from dragoman.storage.migrations import migrations_for
from tests.support.gateway import Signer
from tests.support.waiting import until


class CountingDatabase(SqliteDatabase):
    """Counts the reads."""

    reads = 0

    async def read(self, function: Callable[[sqlite3.Connection], Any]) -> Any:
        self.reads += 1
        return await super().read(function)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[CountingDatabase]:
    made = CountingDatabase(tmp_path / FILE_NAME, migrations_for("sqlite", (*LEDGER_MIGRATIONS, *MIGRATIONS)))
    yield made
    await made.close()


async def test_keys_that_are_asked_for_at_the_same_time_are_found_by_one_read(database: CountingDatabase) -> None:
    keys, made = SqliteSigningKeys(database), [Signer(f"tenant-{number}").key() for number in range(3)]
    for key in made:
        await keys.add(key)
    kids = [*(key.kid for key in made), "nobody's", made[0].kid]
    assert await asyncio.gather(*map(keys.find, kids)) == [*made, None, made[0]]
    assert database.reads == 1


async def test_who_asks_once_the_read_has_begun_sees_a_key_that_was_revoked_meanwhile(
    database: CountingDatabase,
) -> None:
    keys, key = SqliteSigningKeys(database), Signer("tenant").key()
    await keys.add(key)
    first = asyncio.create_task(keys.find(key.kid))
    await until(lambda: database.reads == 1)
    await keys.revoke(key.kid, 5.0)
    found = await keys.find(key.kid)
    assert found is not None
    assert found.revoked_at == 5.0
    assert database.reads == 2
    assert await first is not None


async def test_everybody_is_told_that_the_keys_cannot_be_read(database: CountingDatabase) -> None:
    keys = SqliteSigningKeys(database)
    await database.close()
    told = await asyncio.gather(keys.find("a"), keys.find("b"), return_exceptions=True)
    assert [type(each) for each in told] == [StorageClosed, StorageClosed]


async def test_one_that_stops_waiting_does_not_stop_the_read_for_others(database: CountingDatabase) -> None:
    keys, key = SqliteSigningKeys(database), Signer("tenant").key()
    await keys.add(key)
    leaving, staying = asyncio.create_task(keys.find(key.kid)), asyncio.create_task(keys.find(key.kid))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == key
    assert database.reads == 1
