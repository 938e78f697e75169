"""Messages of the ledger as envelopes."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import AgentContext, AgentMessage, agent
from dragoman.access.callers import LOCAL
from dragoman.agents.aacp import AACPEncoder, AACPEnvelope, AACPMessageType
from dragoman.agents.envelopes import envelope_of
from dragoman.agents.ledger import EntryStatus, LedgerEntry, Query
from dragoman.agents.senders import client_source
from dragoman.errors import InvalidArgument, InvalidEnvelope
from tests.support.aacp import NOW, uuid
from tests.support.agents import agents_served

CLIENT = client_source(LOCAL)


def entry(**changes: Any) -> LedgerEntry:
    fields: dict[str, Any] = {
        "number": 9,
        "message_id": uuid(1),
        "kind": "REQUEST",
        "source": CLIENT,
        "target": "a",
        "owner": CLIENT,
        "request_id": uuid(2),
        "seq": 3,
        "payload": b'{"type":"t","payload":[1]}',
        "accepted_at": 1705314600.0,
        "expires_at": 1705401000.0,
        "status": EntryStatus.WAITING,
    }
    return LedgerEntry(**fields | changes)


def test_an_envelope_has_the_ids_number_time_and_payload_of_the_message() -> None:
    envelope = envelope_of(entry())
    assert envelope == AACPEnvelope(
        message_id=uuid(1),
        request_id=uuid(2),
        source_agent_id=CLIENT,
        target_agent_id="a",
        seq=3,
        message_type=AACPMessageType.REQUEST,
        timestamp=NOW,
        payload={"type": "t", "payload": [1]},
    )
    assert AACPEncoder().decode(AACPEncoder().encode(envelope)) == envelope


def test_events_and_responses_are_envelopes_too() -> None:
    event = envelope_of(entry(kind="EVENT", source="b", request_id=None))
    assert (event.message_type, event.source_agent_id, event.request_id) == (AACPMessageType.EVENT, "b", None)
    answer = envelope_of(entry(kind="RESPONSE", source="a", target=CLIENT, payload=b'{"x":1}'))
    assert (answer.owner, answer.payload) == (CLIENT, {"x": 1})
    apart = envelope_of(entry(kind="RESPONSE", source="a", target=CLIENT, payload=b"", completion_ref=uuid(1)))
    assert apart.payload is None


@pytest.mark.parametrize("changes", [{"request_id": "r"}, {"source": "two words"}, {"target": CLIENT}])
def test_ids_that_the_protocol_does_not_allow_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidEnvelope):
        envelope_of(entry(**changes))


@pytest.mark.requirement("FND-AACP-43")
async def test_the_hook_gets_the_envelope_of_what_was_received() -> None:
    received: list[AACPEnvelope] = []

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        return message.payload

    async with agents_served(handle) as served:
        served.coordinator.on_message_received = received.append
        sent = await served.coordinator.send_reliable_message("a", 1, type="t")
        await served.coordinator.send_request("a", 2, type="u", request_id=uuid(7))
        entries = [each for each in await served.page() if each.kind != "RESPONSE"]
    assert received == [envelope_of(each) for each in entries]
    assert [(each.seq, each.payload, each.source_agent_id) for each in received] == [
        (1, {"type": "t", "payload": 1}, CLIENT),
        (2, {"type": "u", "payload": 2}, CLIENT),
    ]
    assert (received[0].message_id, received[1].request_id) == (sent, uuid(7))


@pytest.mark.requirement("FND-AACP-01")
@pytest.mark.parametrize("named", [{"request_id": "r"}, {"source": "two words"}, {"source": "client:x y"}])
async def test_what_could_be_no_envelope_is_not_accepted(named: dict[str, str]) -> None:
    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        return message.payload

    async with agents_served(handle) as served:
        with pytest.raises(InvalidArgument) as refused:
            await served.coordinator.send_request("a", 1, **named)
        assert refused.value.details == {"reason": "invalid_envelope", "field": refused.value.details["field"]}
        assert await served.coordinator.deliveries.admin.page(Query()) == []
