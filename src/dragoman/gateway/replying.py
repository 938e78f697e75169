"""Answers as envelopes of their own, with the ids of their requests: replies on a bus, and over HTTP if it is asked."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from dragoman.clock import Clock, iso_milliseconds
from dragoman.errors import ToolError
from dragoman.gateway.envelope import VERSIONS, Envelope22
from dragoman.gateway.requests import KEPT_SECONDS
from dragoman.messaging.bus import BusMessage
from dragoman.messaging.subjects import replies_subject
from dragoman.replies.contract import code_in_contract, word_error
from dragoman.replies.vocabulary import RETRYABLE
from dragoman.telemetry.causes import hidden_cause
from dragoman.tools.storage_errors import is_uncertain

_NOT_TAKEN = frozenset(("q=0", "q=0.0", "q=0.00", "q=0.000"))
_SENDER = {"sub": "dragoman", "roles": []}


ENVELOPE_TYPE: Final = "application/vnd.a2a.envelope+json"
"""The media type of an answer over HTTP that is an envelope."""


def answer_envelope(envelope: Envelope22, body: bytes, clock: Clock) -> bytes:
    """The envelope with the answer `{ok, data | error, usage}` to a request."""
    answer = {
        "envelope_version": VERSIONS[-1],
        "request_id": envelope.request_id,
        "correlation_id": envelope.correlation_id,
        "trace_id": envelope.trace_id,
        "tenant_id": envelope.tenant_id,
        "principal": _SENDER,
        "timestamp": iso_milliseconds(clock.now()),
        "ttl_sec": int(KEPT_SECONDS),
        "action": envelope.action,
        "action_version": envelope.action_version,
        "payload": msgspec.Raw(body),
    }
    return msgspec.json.encode(answer)


def reply_to(envelope: Envelope22, body: bytes, clock: Clock, id: str) -> BusMessage:
    """The message with the answer to a request; kept for a day if nobody takes it."""
    return BusMessage(
        subject=replies_subject(envelope.tenant_id, envelope.request_id),
        id=id,
        body=answer_envelope(envelope, body, clock),
        expires_at=clock.now().timestamp() + KEPT_SECONDS,
    )


def wants_envelope(accept: bytes) -> bool:
    """Whether a header `Accept` names the media type of envelopes, and does not say that it is not taken."""
    for each in accept.decode("latin-1").lower().split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        if kind == ENVELOPE_TYPE and not _NOT_TAKEN.intersection(parameters):
            return True
    return False


def error_record(error: ToolError, trace_id: str, attempt: int, clock: Clock) -> bytes:
    """An error as a message keeps it, for operators: with the attempt, the time, and the exception behind it."""
    _, body = word_error(error, trace_id)
    told = {**msgspec.json.decode(body)["error"], "attempt": attempt, "at": iso_milliseconds(clock.now())}
    cause = hidden_cause(error, attempt, clock.now().timestamp())
    return msgspec.json.encode(told if cause is None else {**told, "cause": cause.line})


def may_pass(error: ToolError) -> bool:
    """Whether the same request may succeed a little later."""
    is_said = code_in_contract(error) in RETRYABLE and (error.details or {}).get("retryable") is not False
    return is_said or is_uncertain(error)


def retry_after_seconds(error: ToolError) -> float:
    """How long an error asks to wait; 0 if it says nothing of it."""
    told: Any = (error.details or {}).get("retryAfterMs")
    return told / 1000 if isinstance(told, int) else 0.0
