"""The threads that read from a database."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import suppress

from dragoman.adapters.sqlite_readers import SqliteReaders
from tests.support.waiting import PATIENCE


async def test_what_nobody_waits_for_any_longer_is_not_read() -> None:
    readers = SqliteReaders(lambda: sqlite3.connect(":memory:", isolation_level=None), most=1)
    let_go, read = threading.Event(), list[str]()
    first = asyncio.create_task(readers.run(lambda _: let_go.wait(PATIENCE)))
    given_up = asyncio.create_task(readers.run(lambda _: read.append("given up")))
    wanted = asyncio.create_task(readers.run(lambda _: read.append("wanted")))
    await asyncio.sleep(0)
    given_up.cancel()
    with suppress(asyncio.CancelledError):
        await given_up
    let_go.set()
    await asyncio.gather(first, wanted)
    assert read == ["wanted"]
    await readers.close()
