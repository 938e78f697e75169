"""Envelopes and receipts that travel between agents, and the values that they carry.

An envelope that exists is valid: constructing or decoding another one raises `InvalidEnvelope`.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.errors import InvalidEnvelope, StructuredError

MOST_AGENT_ID = 128
_AGENT_ID = re.compile(r"[A-Za-z0-9_.-]+")
_CLIENT_ID = re.compile(r"client:[0-9a-f]+")
_UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE)
_TOMBSTONE = "aacp/tombstone"
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


class AACPMessageType(StrEnum):
    """The kinds of messages: a request is answered by a response, an event by nothing."""

    REQUEST = "REQUEST"
    RESPONSE = "RESPONSE"
    EVENT = "EVENT"


class AACPOutcome(StrEnum):
    """The outcome of a message or a request.

    UNKNOWN means that nobody could observe the outcome yet: it is in progress, or there was a timeout or a partition.
    It is not a failure, and the work may have been done.
    """

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"


class AACPEnvelope(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One transmission of a message.

    `message_id` is new for every transmission. `request_id` and `seq` stay the same when a message is sent again. `ack`
    is the highest number such that all messages of the opposite direction up to it were received.
    """

    message_id: str
    request_id: str | None = None
    source_agent_id: str
    target_agent_id: str
    seq: int
    ack: int | None = None
    message_type: AACPMessageType
    timestamp: str
    payload: Any

    def __post_init__(self) -> None:
        _check_uuid("messageId", self.message_id)
        if self.request_id is not None:
            _check_uuid("requestId", self.request_id)
        elif self.message_type is not AACPMessageType.EVENT:
            raise InvalidEnvelope("requestId", f"is missing in a {self.message_type}")
        _check_agent("sourceAgentId", self.source_agent_id, may_be_client=True)
        is_response = self.message_type is AACPMessageType.RESPONSE
        _check_agent("targetAgentId", self.target_agent_id, may_be_client=is_response)
        if self.seq < 1:
            raise InvalidEnvelope("seq", f"is {self.seq}, and must be at least 1")
        if self.ack is not None and self.ack < 0:
            raise InvalidEnvelope("ack", f"is {self.ack}, and must be at least 0")
        moment("timestamp", self.timestamp)

    @property
    def owner(self) -> str | None:
        """The agent that made the request: the source of a REQUEST, the target of a RESPONSE."""
        if self.message_type is AACPMessageType.RESPONSE:
            return self.target_agent_id
        return self.source_agent_id if self.request_id else None


class AACPReceipt(Struct, frozen=True, kw_only=True, rename="camel"):
    """Transport acknowledgement: the transmission `message_id` arrived, and so did every message up to `ack`.

    The source of a receipt is the target of the messages. A receipt has no `seq` and is never acknowledged.
    """

    message_id: str
    source_agent_id: str
    target_agent_id: str
    ack: int


class AACPMessageStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The status of a message. `error` is only there when the outcome is FAILED."""

    message_id: str
    request_id: str | None = None
    outcome: AACPOutcome
    timestamp: str
    error: StructuredError | None = None
    completion_ref: str | None = None


class AACPResponse(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The payload of a RESPONSE: the outcome, and the result or the error."""

    outcome: AACPOutcome
    result: Any = None
    error: StructuredError | None = None


def response_in(payload: Any) -> AACPResponse | None:
    """The response that a payload is; None if it is not one, or FAILED without an error, or has another error."""
    try:
        response = msgspec.convert(payload, AACPResponse)
    except msgspec.ValidationError:
        return None
    return response if (response.outcome is AACPOutcome.FAILED) is (response.error is not None) else None


def tombstone(first: int) -> dict[str, Any]:
    """The payload of an EVENT that tells its target not to wait for the numbers from `first` to its own."""
    return {_TOMBSTONE: {"first": first}}


def first_dead(envelope: AACPEnvelope) -> int | None:
    """The first number that a tombstone stands for; None if the envelope is none."""
    if not is_reserved(envelope.payload) or envelope.message_type is not AACPMessageType.EVENT:
        return None
    found = envelope.payload[_TOMBSTONE]
    first = found.get("first") if isinstance(found, dict) else None
    return first if type(first) is int and 1 <= first <= envelope.seq else None


def is_reserved(payload: Any) -> bool:
    """Whether a payload looks like one of the protocol's own, which applications may not send."""
    return isinstance(payload, dict) and _TOMBSTONE in payload


def plain(payload: Any) -> Any:
    """A copy of a payload as it arrives at the other side; raises `InvalidEnvelope` if it is not JSON."""
    try:
        return msgspec.json.decode(msgspec.json.encode(payload))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEnvelope("payload", f"is not JSON: {error}") from None


def moment(field: str, timestamp: str) -> datetime:
    """The moment of an ISO 8601 timestamp with a time zone; raises `InvalidEnvelope`."""
    if _TIMESTAMP.fullmatch(timestamp):
        try:
            return datetime.fromisoformat(timestamp)
        except ValueError:
            pass
    raise InvalidEnvelope(field, "must be an ISO 8601 date and time with a time zone")


def check_ids(source: str | None, request_id: str | None) -> None:
    """Raise `InvalidEnvelope` for ids that no envelope can have; None is not looked at."""
    if source is not None:
        _check_agent("sourceAgentId", source, may_be_client=True)
    if request_id is not None:
        _check_uuid("requestId", request_id)


def _check_uuid(field: str, value: str) -> None:
    if not _UUID4.fullmatch(value):
        raise InvalidEnvelope(field, "must be a UUID of version 4")


def _check_agent(field: str, value: str, *, may_be_client: bool) -> None:
    if len(value) > MOST_AGENT_ID:
        raise InvalidEnvelope(field, f"is longer than {MOST_AGENT_ID} characters")
    if not _AGENT_ID.fullmatch(value) and not (may_be_client and _CLIENT_ID.fullmatch(value)):
        raise InvalidEnvelope(field, "must consist of letters, digits and `_.-`")
