"""Envelopes and their text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.agents.aacp import (
    AACPEncoder,
    AACPEnvelope,
    AACPMessageStatus,
    AACPMessageType,
    AACPOutcome,
)
from dragoman.errors import InvalidEnvelope
from tests.support.aacp import NOW, envelope, uuid
from tests.support.json_values import json_values

WIRE: dict[str, Any] = {
    "messageId": uuid(1),
    "requestId": uuid(1001),
    "sourceAgentId": "a",
    "targetAgentId": "b",
    "seq": 1,
    "messageType": "REQUEST",
    "timestamp": NOW,
    "payload": {"n": 1},
}
CLIENT = "client:" + "0f" * 32


def decode(fields: dict[str, Any]) -> AACPEnvelope:
    return AACPEncoder().decode(json.dumps(fields))


@pytest.mark.requirement("FND-AACP-01", "FND-AACP-29")
def test_an_envelope_has_the_names_of_the_protocol_on_the_wire() -> None:
    assert json.loads(AACPEncoder().encode(envelope(ack=3))) == WIRE | {"ack": 3}
    assert json.loads(AACPEncoder().encode(envelope())) == WIRE
    assert decode(WIRE) == envelope()


@pytest.mark.requirement("FND-AACP-29")
@given(
    payload=json_values(st.none() | st.booleans() | st.integers() | st.text(), st.text()),
    seq=st.integers(1, 2**60),
    ack=st.none() | st.integers(0, 2**60),
    kind=st.sampled_from(AACPMessageType),
)
def test_what_is_encoded_is_decoded_as_it_was(payload: Any, seq: int, ack: int | None, kind: AACPMessageType) -> None:
    sent = envelope(payload=payload, seq=seq, ack=ack, message_type=kind)
    text = AACPEncoder().encode(sent)
    assert isinstance(text, str)
    assert AACPEncoder().decode(text) == sent


@pytest.mark.requirement("FND-AACP-01", "FND-AACP-29")
@pytest.mark.parametrize("field", [name for name in WIRE if name != "requestId"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(InvalidEnvelope) as refused:
        decode({name: value for name, value in WIRE.items() if name != field})
    assert refused.value.field == field


@pytest.mark.requirement("FND-AACP-01", "FND-AACP-02", "FND-AACP-06", "FND-AACP-29")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messageId", "1"),
        ("messageId", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
        ("messageId", 1),
        ("messageId", uuid(1) + "\n"),
        ("requestId", "1"),
        ("requestId", None),
        ("seq", 0),
        ("seq", -1),
        ("seq", 1.0),
        ("seq", "1"),
        ("seq", True),
        ("seq", None),
        ("ack", -1),
        ("ack", None),
        ("ack", "1"),
        ("messageType", "request"),
        ("messageType", "ACK"),
        ("messageType", None),
        ("timestamp", "yesterday"),
        ("timestamp", "2024-01-15"),
        ("timestamp", "2024-01-15T10:30:00"),
        ("timestamp", "2024-13-15T10:30:00Z"),
        ("timestamp", 1705314600),
        ("sourceAgentId", ""),
        ("sourceAgentId", "a:b"),
        ("sourceAgentId", "a b"),
        ("sourceAgentId", "ä"),
        ("sourceAgentId", "a" * 129),
        ("sourceAgentId", "client:"),
        ("sourceAgentId", "client:XYZ"),
        ("sourceAgentId", "client:" + "0" * 122),
        ("targetAgentId", CLIENT),
        ("targetAgentId", 7),
        ("priority", 1),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidEnvelope) as refused:
        decode(WIRE | {field: value})
    assert refused.value.field == field


@pytest.mark.requirement("FND-AACP-29")
@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", '"x"', "{}x", "[" * 100_000])
def test_text_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidEnvelope):
        AACPEncoder().decode(text)


def test_a_payload_that_is_not_json_is_refused() -> None:
    with pytest.raises(InvalidEnvelope) as refused:
        AACPEncoder().encode(envelope(payload=object()))
    assert refused.value.field == "payload"


@pytest.mark.requirement("FND-AACP-06")
@pytest.mark.parametrize("kind", ["REQUEST", "RESPONSE"])
def test_requests_and_responses_need_a_request_id(kind: str) -> None:
    fields = {name: value for name, value in WIRE.items() if name != "requestId"}
    with pytest.raises(InvalidEnvelope) as refused:
        decode(fields | {"messageType": kind})
    assert refused.value.field == "requestId"
    assert decode(fields | {"messageType": "EVENT"}).request_id is None


def test_a_client_may_ask_and_be_answered() -> None:
    assert decode(WIRE | {"sourceAgentId": CLIENT}).source_agent_id == CLIENT
    answer = decode(WIRE | {"targetAgentId": CLIENT, "messageType": "RESPONSE"})
    assert answer.owner == CLIENT
    longest = "aA0_.-" + "x" * 122
    assert decode(WIRE | {"sourceAgentId": longest}).source_agent_id == longest


@pytest.mark.requirement("FND-AACP-02")
def test_there_are_three_types_of_messages() -> None:
    assert [str(kind) for kind in AACPMessageType] == ["REQUEST", "RESPONSE", "EVENT"]


@pytest.mark.requirement("FND-AACP-11")
def test_there_are_three_outcomes() -> None:
    assert [str(outcome) for outcome in AACPOutcome] == ["COMPLETED", "FAILED", "UNKNOWN"]


@pytest.mark.requirement("FND-AACP-12")
def test_the_status_has_its_fields() -> None:
    names = AACPMessageStatus.__struct_encode_fields__
    assert names == ("messageId", "requestId", "outcome", "timestamp", "error", "completionRef")
