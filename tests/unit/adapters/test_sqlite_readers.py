"""The threads that read from a database."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from dragoman.adapters.sqlite_readers import SqliteReaders
from dragoman.calls.places import Holder
from tests.support.waiting import PATIENCE


def readers_of(most: int) -> SqliteReaders:
    return SqliteReaders(lambda: sqlite3.connect(":memory:", isolation_level=None), most=most)


async def test_what_nobody_waits_for_any_longer_is_not_read() -> None:
    readers = readers_of(1)
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


async def test_tenants_share_the_threads_and_have_their_turns() -> None:
    readers, let_go, read = readers_of(2), threading.Event(), list[str]()

    def slowly(_: object) -> None:
        begun.release()
        let_go.wait(PATIENCE)

    begun = threading.Semaphore(0)

    def noted(name: str) -> Callable[[object], None]:
        return lambda _: read.append(name)

    slow = asyncio.create_task(readers.run(slowly, Holder("acme", "1")))
    await asyncio.to_thread(begun.acquire)
    behind = [
        asyncio.create_task(readers.run(noted(f"acme {number}"), Holder("acme", str(number)))) for number in (1, 1, 2)
    ]
    for _ in range(20):  # The other thread is free for others all the time.
        async with asyncio.timeout(PATIENCE):
            await readers.run(noted("globex"), Holder("globex"))
            await readers.run(noted("nobody"))
    assert set(read) == {"globex", "nobody"}
    read.clear()
    let_go.set()
    await asyncio.gather(slow, *behind)
    assert read == ["acme 1", "acme 2", "acme 1"]
    await readers.close()


async def test_every_job_is_done_however_many_come_at_once() -> None:
    readers, read = readers_of(5), Counter[str]()

    def note(tenant: str) -> Callable[[object], None]:
        return lambda _: read.update([tenant])

    async with asyncio.timeout(PATIENCE):
        for _ in range(3):  # Threads start, sleep and wake up.
            await asyncio.gather(
                *(readers.run(note(tenant), Holder(tenant, str(key))) for key in range(40) for tenant in "abc"),
                *(readers.run(note("nobody")) for _ in range(20)),
            )
        left = [asyncio.create_task(readers.run(note("d"), Holder("d"))) for _ in range(9)]
        await asyncio.sleep(0)
        await readers.close()  # What is queued is finished.
        await asyncio.gather(*left)
    assert read == {"a": 120, "b": 120, "c": 120, "nobody": 60, "d": 9}
