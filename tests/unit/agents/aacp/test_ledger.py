"""The ledger over the adapter in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.agents.aacp import (
    AACPLedger,
    AACPMessageRecord,
    AACPMessageStatus,
    AACPMessageType,
    AACPOutcome,
    AACPRequestRecord,
    AACPResponse,
    Appended,
    InMemoryAACPPersistenceAdapter,
    memory,
)
from dragoman.agents.aacp import ledger as ledger_module
from dragoman.agents.aacp.envelope import plain
from dragoman.errors import ErrorCode, RequestConflict, StructuredError
from dragoman.testing import ManualClock
from tests.support.aacp import NOW, envelope, uuid

UNKNOWN, COMPLETED, FAILED = AACPOutcome.UNKNOWN, AACPOutcome.COMPLETED, AACPOutcome.FAILED
TOMORROW = "2024-01-16T10:30:00.000Z"
ERROR = StructuredError(ErrorCode.INTERNAL, "It broke")


class Watched(InMemoryAACPPersistenceAdapter):
    """Notes what becomes settled, in order."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.settled: list[str] = []

    async def put_message_record(self, record: AACPMessageRecord, *, replace: bool = False) -> AACPMessageRecord | None:
        if record.status is not UNKNOWN:
            self.settled.append("message")
        return await super().put_message_record(record, replace=replace)

    def _settle(self, known: AACPRequestRecord | None, **outcome: object) -> bool:
        self.settled.append("request")
        return super()._settle(known, **outcome)


@pytest.fixture
def adapter() -> Watched:
    return Watched()


@pytest.fixture
def ledger(adapter: Watched) -> AACPLedger:
    return AACPLedger(adapter, ManualClock())


def response(result: Any = None, **changes: Any) -> Any:
    payload = plain(AACPResponse(outcome=COMPLETED, result=result))
    reverse = {"source_agent_id": "b", "target_agent_id": "a", "message_type": AACPMessageType.RESPONSE}
    return envelope(**{"message_id": uuid(50), **reverse, "payload": payload} | changes)


@pytest.mark.requirement("FND-AACP-35")
async def test_append_records_the_message_and_the_request(ledger: AACPLedger, adapter: Watched) -> None:
    assert await ledger.append(envelope()) == Appended(True)
    assert await adapter.get_message_record(uuid(1)) == AACPMessageRecord(
        message_id=uuid(1),
        request_id=uuid(1001),
        envelope=envelope(),
        status=UNKNOWN,
        timestamp=NOW,
        expires_at=TOMORROW,
    )
    assert await adapter.get_request_record(uuid(1001), "a") == AACPRequestRecord(
        request_id=uuid(1001),
        source_agent_id="a",
        target_agent_id="b",
        message_type=AACPMessageType.REQUEST,
        payload={"n": 1},
        status=UNKNOWN,
        timestamp=NOW,
        expires_at=TOMORROW,
    )


@pytest.mark.requirement("FND-AACP-35")
async def test_an_event_has_no_request_record(ledger: AACPLedger, adapter: Watched) -> None:
    event = envelope(request_id=None, message_type=AACPMessageType.EVENT)
    assert await ledger.append(event) == Appended(True)
    assert await adapter.list_pending_requests() == []


@pytest.mark.requirement("FND-AACP-10", "FND-AACP-34", "FND-AACP-39")
async def test_of_all_messages_of_one_request_exactly_one_is_new(ledger: AACPLedger) -> None:
    appended = await asyncio.gather(*(ledger.append(envelope(message_id=uuid(n), seq=n)) for n in range(1, 9)))
    assert [each.is_new for each in appended].count(True) == 1
    assert {each.known.status for each in appended if each.known} == {UNKNOWN}


@pytest.mark.requirement("FND-AACP-09", "FND-AACP-34")
async def test_a_completed_request_gives_its_reference_on_every_repetition(ledger: AACPLedger) -> None:
    await ledger.append(envelope())
    await ledger.mark_completed(uuid(1), uuid(50))
    found = [(await ledger.append(envelope(message_id=uuid(n), seq=n))).known for n in (2, 3)]
    found.append(await ledger.check_duplicate(envelope(message_id=uuid(4))))
    assert [(each.status, each.completion_ref) for each in found if each] == [(COMPLETED, uuid(50))] * 3


async def test_a_message_id_that_is_known_is_not_new(ledger: AACPLedger) -> None:
    event = envelope(request_id=None, message_type=AACPMessageType.EVENT)
    await ledger.append(event)
    assert await ledger.append(event) == Appended(False)


@pytest.mark.parametrize(
    "changes", [{"payload": {"n": True}}, {"payload": {"n": 1.0}}, {"payload": None}, {"target_agent_id": "c"}]
)
async def test_another_request_of_the_same_id_is_refused(ledger: AACPLedger, changes: dict[str, Any]) -> None:
    await ledger.append(envelope())
    with pytest.raises(RequestConflict) as refused:
        await ledger.append(envelope(message_id=uuid(2), **changes))
    assert (refused.value.request_id, refused.value.owner) == (uuid(1001), "a")
    with pytest.raises(RequestConflict):
        await ledger.check_duplicate(envelope(message_id=uuid(3), **changes))


async def test_the_same_id_of_another_agent_is_another_request(ledger: AACPLedger) -> None:
    await ledger.append(envelope())
    assert await ledger.append(envelope(message_id=uuid(2), source_agent_id="c", payload=2)) == Appended(True)


async def test_the_order_of_keys_makes_no_other_request(ledger: AACPLedger) -> None:
    await ledger.append(envelope(payload={"a": 1, "b": 2}))
    assert not (await ledger.append(envelope(message_id=uuid(2), payload={"b": 2, "a": 1}))).is_new


@pytest.mark.requirement("FND-AACP-36")
@pytest.mark.parametrize("outcome", [COMPLETED, FAILED])
async def test_the_request_is_settled_before_its_message(
    ledger: AACPLedger, adapter: Watched, outcome: AACPOutcome
) -> None:
    await ledger.append(envelope())
    if outcome is COMPLETED:
        await ledger.mark_completed(uuid(1), uuid(50))
    else:
        await ledger.mark_failed(uuid(1), ERROR)
    assert adapter.settled == ["request", "message"]
    request, message = await adapter.get_request_record(uuid(1001)), await adapter.get_message_record(uuid(1))
    assert request is not None
    assert message is not None
    assert (request.status, message.status) == (outcome, outcome)


@pytest.mark.requirement("FND-AACP-37")
async def test_envelopes_are_found_by_id_and_by_what_is_not_acknowledged(ledger: AACPLedger, adapter: Watched) -> None:
    sent = [envelope(message_id=uuid(n), request_id=uuid(1000 + n), seq=n) for n in (1, 2)]
    for each in sent:
        await ledger.append(each)
    assert await ledger.get_by_message_id(uuid(2)) == sent[1]
    assert await ledger.get_by_message_id(uuid(3)) is None
    assert await ledger.get_unacknowledged("a", "b") == sent
    await adapter.update_last_ack("a", "b", 1)
    assert await ledger.get_unacknowledged("a", "b") == sent[1:]
    assert await ledger.get_unacknowledged("b", "a") == []


@pytest.mark.requirement("FND-AACP-12")
async def test_the_status_of_a_message_is_that_of_its_request(ledger: AACPLedger) -> None:
    assert await ledger.get_status(uuid(1)) is None
    for number in (1, 2, 3):
        await ledger.append(envelope(message_id=uuid(number), request_id=uuid(1000 + number), seq=number))
    await ledger.mark_completed(uuid(2), uuid(50))
    await ledger.mark_failed(uuid(3), ERROR)
    ids = [{"message_id": uuid(number), "request_id": uuid(1000 + number), "timestamp": NOW} for number in (1, 2, 3)]
    assert [await ledger.get_status(uuid(number)) for number in (1, 2, 3)] == [
        AACPMessageStatus(outcome=UNKNOWN, **ids[0]),
        AACPMessageStatus(outcome=COMPLETED, completion_ref=uuid(50), **ids[1]),
        AACPMessageStatus(outcome=FAILED, error=ERROR, **ids[2]),
    ]


@pytest.mark.requirement("FND-AACP-28")
@pytest.mark.parametrize(("length", "is_inline"), [(65_000, True), (65_536, False)])
async def test_a_large_result_is_behind_a_reference(
    ledger: AACPLedger, adapter: Watched, length: int, is_inline: bool
) -> None:
    await ledger.append(envelope())
    await ledger.append(response("x" * length))
    record = await adapter.get_request_record(uuid(1001), "a", AACPMessageType.RESPONSE)
    assert record is not None
    assert (record.payload is not None, record.completion_ref) == (is_inline, None if is_inline else uuid(50))
    assert await ledger.response_to(uuid(1001), "a") == AACPResponse(outcome=COMPLETED, result="x" * length)


async def test_the_first_response_counts(ledger: AACPLedger) -> None:
    await ledger.append(envelope())
    await ledger.append(response(1))
    await ledger.append(response(2, message_id=uuid(51)))
    assert await ledger.response_to(uuid(1001), "a") == AACPResponse(outcome=COMPLETED, result=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"source_agent_id": "c"},
        {"payload": "no response"},
        {"payload": {"outcome": "UNKNOWN"}},
        {"payload": {"outcome": "FAILED"}},
        {"request_id": uuid(1002)},
    ],
    ids=["from another agent", "unreadable", "without an outcome", "without an error", "to nothing"],
)
async def test_what_answers_no_request_is_no_response(ledger: AACPLedger, changes: dict[str, Any]) -> None:
    await ledger.append(envelope())
    await ledger.append(response(1, **changes))
    assert await ledger.response_to(uuid(1001), "a") is None
    assert await ledger.get_by_message_id(uuid(50)) is not None


@pytest.mark.requirement("FND-AACP-27")
def test_the_docs_say_that_memory_is_not_durable() -> None:
    disclaimer = " ".join((memory.__doc__ or "").split())
    assert "best-effort tracking for a single process lifetime only" in disclaimer
    assert "MUST NOT be considered durable across restarts" in disclaimer
    assert "Durable storage is left to v0.2" in disclaimer
    said = " ".join((ledger_module.__doc__ or "").split())
    assert "best effort for one process lifetime, and not durable across restarts" in said
