"""Agents in several processes: one is killed, stopped, told to end, or runs out of room, and no message is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from chaos.asks import Ask, answer_in
from chaos.checks import problems_in
from chaos.run import found_in, opened_ledger
from chaos.servers import Gone, Place, Served
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_ledger_admin import SqliteLedgerAdmin
from dragoman.agents.ledger import EntryStatus, Query
from dragoman.agents.migrations import MIGRATIONS
from dragoman.storage.migrations import migrations_for
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

TAKEN_OVER = "an agent was taken over from a process that has ended"
LOST = "an agent was taken over by another process"
AGENTS = 7


@asynccontextmanager
async def serving(place: Place, *arguments: str) -> AsyncIterator[Served]:
    """A server that has started. Left running at the end of the block, it is killed."""
    server = await Served.start(place, *arguments)
    try:
        await server.call("agent/list")
        yield server
    finally:
        if server.process.returncode is None:
            server.process.send_signal(signal.SIGCONT)
            await server.end(signal.SIGKILL)


def ask_of(target: str, item: str = "an item") -> Ask:
    return Ask(str(uuid4()), target, item)


async def answered(server: Served, ask: Ask) -> Any:
    """The outcome of a request."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer, is_final = answer_in(await server.request(ask.target, ask.item, ask.request_id))
            if is_final:
                ask.answers.append(answer)
                return answer


async def problems_at(place: Place, *asks: Ask) -> list[str]:
    return problems_in(await found_in(place, asks))


def is_unknown(answer: Any) -> bool:
    facts = {"reason": "unknown_outcome", "outcome": "UNKNOWN", "retryable": False}
    return isinstance(answer, dict) and answer["details"] == facts


@pytest.mark.requirement("FND-AACP-15")
async def test_another_server_goes_on_when_the_owner_is_killed(tmp_path: Path) -> None:
    place, asks = Place(tmp_path), [ask_of("tally", f"item {number}") for number in range(3)]
    async with serving(place) as owner, serving(place) as other:
        assert await answered(owner, asks[0]) == 1
        assert await answered(other, asks[1]) == 2
        await owner.end(signal.SIGKILL)
        assert await answered(other, asks[2]) == 3
        await until(lambda: other.logged()[TAKEN_OVER] == AGENTS)
    assert await problems_at(place, *asks) == []


@pytest.mark.requirement("FND-AACP-34")
@pytest.mark.parametrize("target", ["tally", "outside"])
async def test_the_same_request_100_times_at_once_from_two_processes_is_handled_once(
    tmp_path: Path, target: str
) -> None:
    place, ask = Place(tmp_path), ask_of(target)
    async with serving(place) as owner, serving(place) as other:
        answers = await asyncio.gather(*(answered(server, ask) for _ in range(50) for server in (owner, other)))
    assert answers == [1] * 100
    found = await found_in(place, [ask])
    assert problems_in(found) == []
    assert [entry.kind for entry in found.entries] == ["REQUEST", "RESPONSE"]


async def test_sigterm_gives_the_agents_back_and_nobody_takes_the_server_for_crashed(tmp_path: Path) -> None:
    place, asks = Place(tmp_path, {"aacp.lease_ms": 3_600_000}), [ask_of("tally", "one"), ask_of("tally", "two")]
    async with serving(place) as owner, serving(place) as other:
        assert await answered(owner, asks[0]) == 1
        assert await owner.end(signal.SIGTERM) == 0
        assert await answered(other, asks[1]) == 2
        assert (await other.end(signal.SIGTERM), other.logged()[TAKEN_OVER]) == (0, 0)
    left = [lock.name for lock in (place.data / "locks").iterdir()]
    assert [name for name in left if not name.startswith("job-")] == []  # The locks of jobs stay, with no holder.
    assert await problems_at(place, *asks) == []


@pytest.mark.parametrize("target", ["tally", "outside"])
@pytest.mark.parametrize("point", ["handler ended", "settle asked"])
async def test_the_commit_of_a_process_that_was_stopped_past_its_lease_is_refused(
    tmp_path: Path, target: str, point: str
) -> None:
    place, asks = Place(tmp_path, {"aacp.lease_ms": 500}), [ask_of(target, "one"), ask_of(target, "two")]
    async with serving(place, "--point", point, "--stops") as stopped, serving(place) as other:
        first = asyncio.create_task(answered(stopped, asks[0]))
        usage = psutil.Process(stopped.process.pid)
        await until(lambda: usage.status() == psutil.STATUS_STOPPED)
        outcome = await answered(other, asks[0])
        assert outcome == 1 if target == "tally" else is_unknown(outcome)
        stopped.process.send_signal(signal.SIGCONT)
        assert await first == outcome
        assert await answered(stopped, asks[1]) == (2 if target == "tally" else 1)
        await until(lambda: stopped.logged()[LOST] > 0)
    assert await problems_at(place, *asks) == []


async def test_a_server_of_another_space_takes_fails_and_purges_nothing(tmp_path: Path) -> None:
    place, asks = Place(tmp_path), [ask_of("tally", "one"), ask_of("outside", "two")]
    async with serving(place, "--point", "handler ended", "--times", "2") as owner:
        assert await answered(owner, asks[0]) == 1
        with pytest.raises(Gone):
            await answered(owner, asks[1])
    left = await found_in(place, asks)
    assert [entry.status for entry in left.entries if entry.kind == "REQUEST"] == ["completed", "running"]
    async with serving(replace(place, settings={"storage.space": "another"})) as foreign:
        same = replace(asks[0], answers=[])
        assert await answered(foreign, same) == 1  # The other space's own, and its first.
        assert (await foreign.end(signal.SIGTERM), foreign.logged()[TAKEN_OVER]) == (0, 0)
    database = SqliteDatabase(place.data / FILE_NAME, migrations_for("sqlite", MIGRATIONS))
    assert await SqliteLedgerAdmin(database, "another").purge(now=1e12, limit=500) == 2
    await database.close()
    assert (await found_in(place, asks)).entries == left.entries
    async with serving(place) as next_owner:
        assert is_unknown(await answered(next_owner, asks[1]))
    assert await problems_at(place, *asks) == []


async def test_a_wall_clock_that_jumps_loses_no_lease_and_no_message(tmp_path: Path) -> None:
    place, clock = Place(tmp_path, {"aacp.lease_ms": 1000}), tmp_path / "clock"
    asks = [ask_of("flaky", f"item {number}") for number in range(4)]
    clock.write_text("0", "utf-8")
    async with serving(place, "--clock-file", str(clock)) as owner, serving(place) as other:
        for turn, ahead in enumerate(("0", "3600", "-3600", "0")):
            (tmp_path / "next").write_text(ahead, "utf-8")
            os.replace(tmp_path / "next", clock)
            assert await answered((owner, other)[turn % 2], asks[turn]) == turn + 1
        assert owner.logged()[LOST] == other.logged()[TAKEN_OVER] == 0
    assert await problems_at(place, *asks) == []


async def test_a_retry_that_was_due_by_a_clock_an_hour_ahead_is_not_waited_for(tmp_path: Path) -> None:
    place, clock, ask = Place(tmp_path), tmp_path / "clock", ask_of("flaky")
    clock.write_text("3600", "utf-8")
    async with serving(place, "--clock-file", str(clock), "--point", "retry committed") as ahead:
        with pytest.raises(Gone):
            await answered(ahead, ask)
    async with serving(place) as punctual:
        assert await answered(punctual, ask) == 1
    assert await problems_at(place, ask) == []


async def test_a_full_disk_is_answered_as_such_loses_nothing_and_work_goes_on_with_room(tmp_path: Path) -> None:
    place, room, asks, reasons = Place(tmp_path), tmp_path / "room", list[Ask](), Counter[str]()
    give_room(room, 1_000_000)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(place, "--room-file", str(room)))
        asks.append(ask_of("relay", "the first"))
        assert await answered(server, asks[0]) == 1
        await server.end(signal.SIGKILL)
        give_room(room, pages_of(place) + 20)
        server = await stack.enter_async_context(serving(place, "--room-file", str(room)))

        async def ask(number: int) -> None:
            asks.append(made := ask_of("relay", f"{number} {'x' * 5000}"))
            answer, is_final = answer_in(await server.request(made.target, made.item, made.request_id))
            if is_final:
                made.answers.append(answer)
            else:
                reasons[answer["details"]["reason"]] += 1

        waiting = [asyncio.create_task(ask(number)) for number in range(40)]
        await until(lambda: reasons["storage_full"] > 0)
        give_room(room, 1_000_000)
        await asyncio.gather(*waiting)
        await asyncio.gather(*(answered(server, each) for each in asks))
        await until_nothing_is_open(place)
    assert reasons.keys() == {"storage_full"}
    assert await problems_at(place, *asks) == []


def give_room(room: Path, pages: int) -> None:
    """Limit the database, all at once: the server may read the file at any moment."""
    fresh = room.with_suffix(".new")
    fresh.write_text(str(pages), "utf-8")
    fresh.replace(room)


def pages_of(place: Place) -> int:
    connection = sqlite3.connect(place.data / FILE_NAME)
    try:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
    finally:
        connection.close()
    return int(pages)


async def until_nothing_is_open(place: Place) -> None:
    open_ones = (EntryStatus.WAITING, EntryStatus.RUNNING, EntryStatus.RETRYING)
    async with asyncio.timeout(PATIENCE), opened_ledger(place) as (_, admin):
        while await admin.page(Query(statuses=open_ones, limit=1)):  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.02)
