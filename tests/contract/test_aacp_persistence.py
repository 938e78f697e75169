"""The contract of `AACPPersistenceAdapter` and `AACPRecords`, for every engine and for the adapter in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as changed

from dragoman.agents.aacp import (
    AACPEnvelope,
    AACPMessageRecord,
    AACPMessageType,
    AACPOutcome,
    AACPPersistenceAdapter,
    AACPRecords,
    AACPRequestRecord,
    InMemoryAACPPersistenceAdapter,
)
from dragoman.agents.aacp.records import DEFAULT_TTL_MS
from dragoman.errors import ErrorCode, InvalidEnvelope, StructuredError
from dragoman.testing import ManualClock
from tests.contract.engines import ENGINES, PLENTY
from tests.support.aacp import NOW, envelope, uuid

TOMORROW = "2024-01-16T10:30:00.000Z"
UNKNOWN, COMPLETED, FAILED = AACPOutcome.UNKNOWN, AACPOutcome.COMPLETED, AACPOutcome.FAILED
RESPONSE = AACPMessageType.RESPONSE
ERROR = StructuredError(ErrorCode.INTERNAL, "It broke", {"part": "x"})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class InMaps:
    """An adapter in memory for each agent."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._adapters: dict[str, InMemoryAACPPersistenceAdapter] = {}

    def for_agent(self, agent_id: str, default_ttl_ms: int = DEFAULT_TTL_MS) -> AACPPersistenceAdapter:
        return self._adapters.setdefault(agent_id, InMemoryAACPPersistenceAdapter(self._clock, default_ttl_ms))


@pytest.fixture(params=["maps", *ENGINES])
async def records(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[AACPRecords]:
    if request.param == "maps":
        yield InMaps(clock)
        return
    storage = ENGINES[request.param](tmp_path, PLENTY, clock)
    yield storage.port(AACPRecords)
    await storage.close()


@pytest.fixture
def adapter(records: AACPRecords) -> AACPPersistenceAdapter:
    return records.for_agent("a")


def request_record(**changes: Any) -> AACPRequestRecord:
    fields: dict[str, Any] = {
        "request_id": uuid(1001),
        "source_agent_id": "a",
        "target_agent_id": "b",
        "message_type": AACPMessageType.REQUEST,
        "payload": {"n": 1, "deep": [None, 1.5, "ü"]},
        "status": UNKNOWN,
        "timestamp": NOW,
    }
    return AACPRequestRecord(**fields | changes)


def message_record(sent: AACPEnvelope | None = None, **changes: Any) -> AACPMessageRecord:
    sent = sent or envelope()
    fields: dict[str, Any] = {
        "message_id": sent.message_id,
        "request_id": sent.request_id,
        "envelope": sent,
        "status": UNKNOWN,
        "timestamp": NOW,
    }
    return AACPMessageRecord(**fields | changes)


@pytest.mark.requirement("FND-AACP-20", "FND-AACP-22", "FND-AACP-24")
async def test_a_request_record_is_kept_with_every_field(adapter: AACPPersistenceAdapter) -> None:
    record = request_record(completion_ref=uuid(7), error=ERROR)
    assert await adapter.get_request_record(record.request_id) is None
    assert await adapter.put_request_record(record) is None
    assert await adapter.get_request_record(record.request_id) == changed(record, expires_at=TOMORROW)


@pytest.mark.requirement("FND-AACP-20", "FND-AACP-23", "FND-AACP-24")
async def test_a_message_record_is_kept_with_every_field(adapter: AACPPersistenceAdapter) -> None:
    record = message_record(retry_count=3, next_retry_at="2024-01-15T10:31:00.000Z")
    assert await adapter.get_message_record(record.message_id) is None
    assert await adapter.put_message_record(record) is None
    assert await adapter.get_message_record(record.message_id) == changed(record, expires_at=TOMORROW)


@pytest.mark.requirement("FND-AACP-22")
async def test_a_request_record_has_the_fields_of_the_specification(adapter: AACPPersistenceAdapter) -> None:
    expires_at = "2030-01-01T00:00:00.000Z"
    full = request_record(status=FAILED, expires_at=expires_at, completion_ref=uuid(7), error=ERROR)
    await adapter.put_request_record(full)
    kept = await adapter.get_request_record(uuid(1001))
    assert msgspec.json.decode(msgspec.json.encode(kept)) == {
        "requestId": uuid(1001),
        "sourceAgentId": "a",
        "targetAgentId": "b",
        "messageType": "REQUEST",
        "payload": {"n": 1, "deep": [None, 1.5, "ü"]},
        "status": "FAILED",
        "timestamp": NOW,
        "expiresAt": expires_at,
        "completionRef": uuid(7),
        "error": msgspec.to_builtins(ERROR),
    }


@pytest.mark.requirement("FND-AACP-22", "FND-AACP-24")
async def test_an_explicit_expiry_is_kept(adapter: AACPPersistenceAdapter) -> None:
    await adapter.put_request_record(request_record(expires_at="2030-01-01T00:00:00.000Z"))
    await adapter.put_message_record(message_record(expires_at="2031-01-01T00:00:00.000Z"))
    request, message = await adapter.get_request_record(uuid(1001)), await adapter.get_message_record(uuid(1))
    assert request is not None
    assert message is not None
    assert (request.expires_at, message.expires_at) == ("2030-01-01T00:00:00.000Z", "2031-01-01T00:00:00.000Z")


@pytest.mark.requirement("FND-AACP-34")
async def test_of_many_puts_of_one_request_exactly_one_is_new(adapter: AACPPersistenceAdapter) -> None:
    records = [request_record(payload=number) for number in range(20)]
    answers = await asyncio.gather(*(adapter.put_request_record(record) for record in records))
    assert answers.count(None) == 1
    kept = await adapter.get_request_record(uuid(1001))
    assert kept is not None
    assert kept.payload == answers.index(None)
    assert [answer for answer in answers if answer is not None] == [kept] * 19


async def test_requests_of_two_owners_and_a_request_and_its_response_are_different(
    adapter: AACPPersistenceAdapter,
) -> None:
    records = [
        request_record(),
        request_record(source_agent_id="c"),
        request_record(source_agent_id="b", target_agent_id="a", message_type=RESPONSE, status=COMPLETED),
    ]
    for record in records:
        assert await adapter.put_request_record(record) is None
    kept = [changed(record, expires_at=TOMORROW) for record in records]
    assert await adapter.get_request_record(uuid(1001), "a") == kept[0]
    assert await adapter.get_request_record(uuid(1001), "c") == kept[1]
    assert await adapter.get_request_record(uuid(1001), "a", RESPONSE) == kept[2]
    assert await adapter.get_request_record(uuid(1001), "b") is None
    assert await adapter.get_request_record(uuid(1001)) == kept[0]


async def test_a_message_is_replaced_only_when_asked_to(adapter: AACPPersistenceAdapter) -> None:
    first = changed(message_record(), expires_at=TOMORROW)
    await adapter.put_message_record(first)
    second = changed(first, retry_count=1)
    assert await adapter.put_message_record(second) == first
    assert await adapter.get_message_record(uuid(1)) == first
    assert await adapter.put_message_record(second, replace=True) == first
    assert await adapter.get_message_record(uuid(1)) == second
    done = changed(second, status=COMPLETED)
    await adapter.put_message_record(done, replace=True)
    assert await adapter.put_message_record(second, replace=True) == done
    assert await adapter.get_message_record(uuid(1)) == done


@pytest.mark.requirement("FND-AACP-20", "FND-AACP-11")
async def test_outcomes_are_kept_and_final(adapter: AACPPersistenceAdapter) -> None:
    for owner in ("a", "c"):
        await adapter.put_request_record(request_record(source_agent_id=owner))
    assert await adapter.mark_completed(uuid(1001), COMPLETED, uuid(7), owner="a")
    assert await adapter.mark_failed(uuid(1001), ERROR, owner="c")
    assert not await adapter.mark_failed(uuid(1001), ERROR, owner="a")
    assert not await adapter.mark_completed(uuid(1001), COMPLETED, uuid(8), owner="c")
    assert not await adapter.mark_completed(uuid(1002), COMPLETED)
    completed, failed = (
        await adapter.get_request_record(uuid(1001), "a"),
        await adapter.get_request_record(uuid(1001), "c"),
    )
    kept = request_record(expires_at=TOMORROW)
    assert completed == changed(kept, status=COMPLETED, completion_ref=uuid(7))
    assert failed == changed(kept, source_agent_id="c", status=FAILED, error=ERROR)


@pytest.mark.requirement("FND-AACP-05", "FND-AACP-20", "FND-AACP-26")
async def test_each_direction_of_each_pair_has_its_own_numbers_which_never_go_down(
    adapter: AACPPersistenceAdapter,
) -> None:
    assert (await adapter.get_last_sequence("a", "b"), await adapter.get_last_ack("a", "b")) == (0, 0)
    await adapter.update_last_sequence("a", "b", 5)
    await adapter.update_last_sequence("a", "b", 3)
    await adapter.update_last_ack("a", "b", 4)
    await adapter.update_last_ack("a", "b", 2)
    assert (await adapter.get_last_sequence("a", "b"), await adapter.get_last_ack("a", "b")) == (5, 4)
    for pair in (("b", "a"), ("a", "c"), ("c", "b")):
        assert (await adapter.get_last_sequence(*pair), await adapter.get_last_ack(*pair)) == (0, 0)


@pytest.mark.requirement("FND-AACP-21", "FND-AACP-37")
async def test_unacknowledged_messages_are_the_open_ones_above_the_ack_in_order(
    adapter: AACPPersistenceAdapter,
) -> None:
    sent = [envelope(message_id=uuid(seq), seq=seq) for seq in (5, 3, 2, 1, 4)]
    for each in sent:
        await adapter.put_message_record(message_record(each, status=COMPLETED if each.seq == 4 else UNKNOWN))
    reverse = envelope(message_id=uuid(9), source_agent_id="b", target_agent_id="a", seq=7)
    await adapter.put_message_record(message_record(reverse))
    await adapter.update_last_ack("a", "b", 2)
    assert await adapter.get_unacknowledged_messages("a", "b") == [sent[1], sent[0]]
    assert await adapter.get_unacknowledged_messages("b", "a") == [reverse]
    assert await adapter.get_unacknowledged_messages("a", "c") == []


@pytest.mark.requirement("FND-AACP-15", "FND-AACP-21")
async def test_pending_requests_and_messages_in_a_state_can_be_filtered_by_age(
    adapter: AACPPersistenceAdapter, clock: ManualClock
) -> None:
    later = "2024-01-15T10:30:01.000Z"
    old, new = request_record(), request_record(request_id=uuid(1002), timestamp=later)
    done = request_record(request_id=uuid(1003), status=COMPLETED)
    answer = request_record(source_agent_id="b", target_agent_id="a", message_type=RESPONSE)
    for record in (old, new, done, answer):
        await adapter.put_request_record(record)
    messages = [message_record(), message_record(envelope(message_id=uuid(2), seq=2), timestamp=later)]
    for message in (*messages, message_record(envelope(message_id=uuid(3), seq=3), status=FAILED)):
        await adapter.put_message_record(message)
    moment = clock.now() + timedelta(seconds=1)
    assert [each.request_id for each in await adapter.list_pending_requests()] == [uuid(1001), uuid(1002)]
    assert [each.request_id for each in await adapter.list_pending_requests(moment)] == [uuid(1001)]
    assert [each.message_id for each in await adapter.list_messages_in_state(UNKNOWN)] == [uuid(1), uuid(2)]
    assert [each.message_id for each in await adapter.list_messages_in_state(UNKNOWN, moment)] == [uuid(1)]
    assert [each.message_id for each in await adapter.list_messages_in_state(FAILED)] == [uuid(3)]
    assert await adapter.list_messages_in_state(COMPLETED) == []


@pytest.mark.requirement("FND-AACP-25")
async def test_purging_deletes_exactly_what_has_expired_and_no_numbers(
    adapter: AACPPersistenceAdapter, clock: ManualClock
) -> None:
    limit = ["2024-01-15T10:59:59.999Z", "2024-01-15T11:30:00.000+00:30", "2024-01-15T11:00:00.001Z"]
    for number, expires_at in enumerate(limit):
        await adapter.put_request_record(request_record(request_id=uuid(1001 + number), expires_at=expires_at))
        sent = envelope(message_id=uuid(1 + number), seq=1 + number)
        await adapter.put_message_record(message_record(sent, expires_at=expires_at))
    await adapter.update_last_sequence("a", "b", 3)
    await adapter.update_last_ack("a", "b", 1)
    clock.advance(30 * 60)
    assert await adapter.purge_expired(clock.now()) == 4
    assert await adapter.purge_expired(clock.now()) == 0
    assert [await adapter.get_request_record(uuid(1001 + number)) is not None for number in range(3)] == [0, 0, 1]
    assert [await adapter.get_message_record(uuid(1 + number)) is not None for number in range(3)] == [0, 0, 1]
    assert (await adapter.get_last_sequence("a", "b"), await adapter.get_last_ack("a", "b")) == (3, 1)


async def test_each_agent_has_records_of_its_own_and_always_the_same(records: AACPRecords) -> None:
    await records.for_agent("a").put_request_record(request_record())
    await records.for_agent("a").put_message_record(message_record())
    await records.for_agent("a").update_last_sequence("a", "b", 3)
    await records.for_agent("a").update_last_ack("a", "b", 2)
    other = records.for_agent("b")
    assert await other.get_request_record(uuid(1001)) is None
    assert await other.get_message_record(uuid(1)) is None
    assert (await other.get_last_sequence("a", "b"), await other.get_last_ack("a", "b")) == (0, 0)
    assert await other.get_unacknowledged_messages("a", "b") == []
    assert (await other.list_pending_requests(), await other.list_messages_in_state(UNKNOWN)) == ([], [])
    assert not await other.mark_completed(uuid(1001), COMPLETED)
    assert await other.purge_expired(datetime.max.replace(tzinfo=UTC)) == 0
    assert await other.put_request_record(request_record()) is None
    assert await other.put_message_record(message_record()) is None
    again = records.for_agent("a")
    assert await again.get_request_record(uuid(1001)) == request_record(expires_at=TOMORROW)
    assert await again.get_message_record(uuid(1)) == message_record(expires_at=TOMORROW)
    assert (await again.get_last_sequence("a", "b"), await again.get_last_ack("a", "b")) == (3, 2)


@pytest.mark.requirement("FND-AACP-24")
async def test_records_live_as_long_as_the_default_says(records: AACPRecords, clock: ManualClock) -> None:
    adapter = records.for_agent("a", 1_500)
    await adapter.put_request_record(request_record())
    await adapter.put_message_record(message_record())
    assert await adapter.purge_expired(clock.now() + timedelta(milliseconds=1_499)) == 0
    assert await adapter.purge_expired(clock.now() + timedelta(milliseconds=1_500)) == 2


async def test_a_record_whose_times_are_none_is_refused(adapter: AACPPersistenceAdapter, clock: ManualClock) -> None:
    for changes in ({"timestamp": "yesterday"}, {"expires_at": "2024-01-16T10:30:00"}):
        with pytest.raises(InvalidEnvelope):
            await adapter.put_request_record(request_record(**changes))
        with pytest.raises(InvalidEnvelope):
            await adapter.put_message_record(message_record(**changes))
    assert await adapter.list_messages_in_state(UNKNOWN, clock.now()) == []
    assert await adapter.purge_expired(clock.now()) == 0


async def test_a_message_with_an_outcome_can_get_another_one(adapter: AACPPersistenceAdapter) -> None:
    dead = message_record(status=FAILED, expires_at=TOMORROW)
    await adapter.put_message_record(dead)
    await adapter.put_message_record(changed(dead, status=COMPLETED), replace=True)
    assert await adapter.get_message_record(uuid(1)) == changed(dead, status=COMPLETED)


async def test_without_an_owner_the_oldest_request_of_an_id_is_marked(adapter: AACPPersistenceAdapter) -> None:
    for owner in ("z", "a"):
        await adapter.put_request_record(request_record(source_agent_id=owner))
    assert await adapter.mark_completed(uuid(1001), COMPLETED)
    assert not await adapter.mark_failed(uuid(1001), ERROR)
    assert [each.source_agent_id for each in await adapter.list_pending_requests()] == ["a"]


async def test_records_are_listed_oldest_first_whatever_they_say(adapter: AACPPersistenceAdapter) -> None:
    for number in (3, 1, 2):
        await adapter.put_request_record(request_record(request_id=uuid(1000 + number), source_agent_id=f"s{number}"))
        await adapter.put_message_record(message_record(envelope(message_id=uuid(number), seq=number)))
    await adapter.put_message_record(message_record(envelope(message_id=uuid(3), seq=3), retry_count=1), replace=True)
    assert [each.request_id for each in await adapter.list_pending_requests()] == [uuid(1003), uuid(1001), uuid(1002)]
    assert [each.message_id for each in await adapter.list_messages_in_state(UNKNOWN)] == [uuid(3), uuid(1), uuid(2)]
