"""What is special about the records of AACP endpoints in a database: they last, are shared, and are found quickly."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dragoman.adapters.sqlite_aacp import MOST_PURGED_AT_ONCE, SqliteAACPPersistence
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.agents.aacp import AACPMessageRecord, AACPMessageType, AACPOutcome, AACPRequestRecord, DirectLink
from dragoman.agents.aacp.ledger import MOST_INLINE_BYTES
from dragoman.agents.migrations import MIGRATIONS
from dragoman.testing import ManualClock
from tests.support.aacp import NOW, Agent, envelope, uuid, uuids

UNKNOWN, COMPLETED = AACPOutcome.UNKNOWN, AACPOutcome.COMPLETED
CLOCK = ManualClock()
Open = Callable[[], SqliteDatabase]


class TracedDatabase(SqliteDatabase):
    """Notes the statements that are executed, with their values."""

    def connect(self) -> sqlite3.Connection:
        connection = super().connect()
        connection.set_trace_callback(self.statements.append)
        return connection

    def __init__(self, path: Path) -> None:
        super().__init__(path, MIGRATIONS)
        self.statements: list[str] = []


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the same file as another process would."""
    async with AsyncExitStack() as stack:

        def open_again() -> SqliteDatabase:
            database = SqliteDatabase(tmp_path / FILE_NAME, MIGRATIONS)
            stack.push_async_callback(database.close)
            return database

        yield open_again


def records(database: SqliteDatabase, side: str = "a", space: str = "tests") -> SqliteAACPPersistence:
    return SqliteAACPPersistence(database, space, side, CLOCK)


def request(number: int = 1, payload: Any = None) -> AACPRequestRecord:
    return AACPRequestRecord(
        request_id=uuid(1000 + number),
        source_agent_id="a",
        target_agent_id="b",
        message_type=AACPMessageType.REQUEST,
        payload=payload,
        status=UNKNOWN,
        timestamp=NOW,
        expires_at=NOW,
    )


def message(number: int = 1) -> AACPMessageRecord:
    sent = envelope(message_id=uuid(number), seq=number)
    return AACPMessageRecord(
        message_id=sent.message_id,
        request_id=sent.request_id,
        envelope=sent,
        status=UNKNOWN,
        timestamp=NOW,
        expires_at=NOW,
    )


async def test_records_and_numbers_survive_the_process(opened: Open) -> None:
    database = opened()
    first = records(database)
    await first.put_request_record(request(payload={"n": [1, None]}))
    await first.put_message_record(message())
    await first.update_last_sequence("a", "b", 7)
    await first.update_last_ack("a", "b", 5)
    await database.close()
    second = records(opened())
    assert await second.get_request_record(uuid(1001), "a") == request(payload={"n": [1, None]})
    assert await second.get_message_record(uuid(1)) == message()
    assert (await second.get_last_sequence("a", "b"), await second.get_last_ack("a", "b")) == (7, 5)


@pytest.mark.requirement("FND-AACP-34")
async def test_of_two_processes_that_put_the_same_request_one_finds_that_of_the_other(opened: Open) -> None:
    adapters = [records(opened()), records(opened())]
    for number in range(20):
        answers = await asyncio.gather(
            *(each.put_request_record(request(number, payload)) for payload, each in enumerate(adapters))
        )
        winner = answers.index(None)
        assert answers[1 - winner] == request(number, winner)
        assert await adapters[1 - winner].get_request_record(uuid(1000 + number)) == request(number, winner)


async def test_of_two_processes_that_settle_the_same_request_one_does(opened: Open) -> None:
    adapters = [records(opened()), records(opened())]
    await adapters[0].put_request_record(request())
    refs = [uuid(7), uuid(8)]
    settled = await asyncio.gather(
        *(each.mark_completed(uuid(1001), COMPLETED, ref) for each, ref in zip(adapters, refs, strict=True))
    )
    assert sorted(settled) == [False, True]
    kept = await adapters[0].get_request_record(uuid(1001))
    assert kept is not None
    assert kept.completion_ref == refs[settled.index(True)]


async def test_spaces_of_one_file_are_apart(opened: Open) -> None:
    database = opened()
    await records(database).put_request_record(request())
    other = records(database, space="others")
    assert await other.get_request_record(uuid(1001)) is None
    assert await other.purge_expired(CLOCK.now()) == 0
    assert await other.put_request_record(request()) is None


@pytest.mark.requirement("FND-AACP-25")
async def test_a_purge_of_many_steps_counts_all_of_them(opened: Open) -> None:
    kept = records(opened())
    many = MOST_PURGED_AT_ONCE + 1
    await asyncio.gather(*(kept.put_message_record(message(number)) for number in range(1, many + 1)))
    await kept.put_request_record(request())
    assert await kept.purge_expired(CLOCK.now() - timedelta(microseconds=1)) == 0
    assert await kept.purge_expired(CLOCK.now()) == many + 1
    assert await kept.list_messages_in_state(UNKNOWN) == []


async def test_a_large_result_is_a_row_of_its_own_and_survives_a_restart(opened: Open) -> None:
    clock, link, new_id = ManualClock(), DirectLink(), uuids()
    database, large = opened(), "x" * (MOST_INLINE_BYTES + 1)
    a = Agent("a", link, clock, new_id, keep=lambda clock: records(database, "a"))
    b = Agent("b", link, clock, new_id, keep=lambda clock: records(database, "b"), answer=lambda envelope: large)
    assert await a.endpoint.send_request("b", 1, request_id=uuid(5000)) == large
    await link.settle()
    responses = "SELECT side, length(payload), completion_ref IS NULL FROM aacp_request WHERE message_type = 'RESPONSE'"
    assert sorted(await database.read(lambda connection: connection.execute(responses).fetchall())) == [
        ("a", len("null"), 0),
        ("b", len("null"), 0),
    ]
    await database.close()
    database = opened()
    for agent in (a, b):
        agent.__post_init__()
        await agent.endpoint.recover()
    assert await a.endpoint.send_request("b", 1, request_id=uuid(5000)) == large
    assert len(b.handled) == 1


async def test_every_statement_is_answered_from_an_index(tmp_path: Path) -> None:
    database = TracedDatabase(tmp_path / FILE_NAME)
    kept = records(database)
    await kept.put_request_record(request())
    await kept.put_request_record(request())
    await kept.put_message_record(message(), replace=True)
    await kept.put_message_record(message())
    for owner in (None, "a"):
        await kept.get_request_record(uuid(1001), owner)
        await kept.mark_completed(uuid(1001), UNKNOWN, owner=owner)
    await kept.update_last_ack("a", "b", 1)
    await kept.get_last_sequence("a", "b")
    await kept.get_unacknowledged_messages("a", "b")
    await kept.list_pending_requests()
    await kept.list_messages_in_state(UNKNOWN, CLOCK.now())
    await kept.purge_expired(CLOCK.now())
    await database.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        plans = {
            statement: [step[3] for step in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
            for statement in database.statements
            if " aacp_" in statement and not statement.startswith("--")
        }
    connection.close()
    assert len(plans) > 10
    assert {statement: plan for statement, plan in plans.items() if any("SCAN" in step for step in plan)} == {}
