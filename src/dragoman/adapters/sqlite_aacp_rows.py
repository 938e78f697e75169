"""How the records of AACP endpoints are kept as rows of a database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from dragoman.agents.aacp.envelope import AACPEnvelope, AACPMessageType, AACPOutcome, moment
from dragoman.agents.aacp.records import AACPMessageRecord, AACPRequestRecord
from dragoman.errors import StructuredError

REQUEST_COLUMNS = (
    "owner, recorded, expires, request_id, message_type, source, target, status, timestamp, expires_at, "
    "completion_ref, error, payload"
)
MESSAGE_COLUMNS = (
    "source, target, seq, recorded, expires, message_id, request_id, envelope, status, timestamp, expires_at, "
    "retry_count, next_retry_at"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(at: datetime) -> int:
    """A moment as rows have it, which can be compared whatever its time zone."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def request_row(record: AACPRequestRecord, expires_at: str) -> tuple[Any, ...]:
    """The values of `REQUEST_COLUMNS`; raises `InvalidEnvelope` for times that are none."""
    return (
        record.owner,
        microseconds(moment("timestamp", record.timestamp)),
        microseconds(moment("expiresAt", expires_at)),
        record.request_id,
        record.message_type,
        record.source_agent_id,
        record.target_agent_id,
        record.status,
        record.timestamp,
        expires_at,
        record.completion_ref,
        None if record.error is None else msgspec.json.encode(record.error),
        msgspec.json.encode(record.payload),
    )


def request_in(row: Sequence[Any]) -> AACPRequestRecord:
    """A record from a row of `REQUEST_COLUMNS`."""
    request_id, message_type, source, target, status, timestamp, expires_at, completion_ref, error, payload = row[3:]
    return AACPRequestRecord(
        request_id=request_id,
        source_agent_id=source,
        target_agent_id=target,
        message_type=AACPMessageType(message_type),
        payload=msgspec.json.decode(payload),
        status=AACPOutcome(status),
        timestamp=timestamp,
        expires_at=expires_at,
        completion_ref=completion_ref,
        error=None if error is None else msgspec.json.decode(error, type=StructuredError),
    )


def message_row(record: AACPMessageRecord, expires_at: str) -> tuple[Any, ...]:
    """The values of `MESSAGE_COLUMNS`; raises `InvalidEnvelope` for times that are none."""
    return (
        record.envelope.source_agent_id,
        record.envelope.target_agent_id,
        record.envelope.seq,
        microseconds(moment("timestamp", record.timestamp)),
        microseconds(moment("expiresAt", expires_at)),
        record.message_id,
        record.request_id,
        msgspec.json.encode(record.envelope),
        record.status,
        record.timestamp,
        expires_at,
        record.retry_count,
        record.next_retry_at,
    )


def message_in(row: Sequence[Any]) -> AACPMessageRecord:
    """A record from a row of `MESSAGE_COLUMNS`."""
    message_id, request_id, envelope, status, timestamp, expires_at, retry_count, next_retry_at = row[5:]
    return AACPMessageRecord(
        message_id=message_id,
        request_id=request_id,
        envelope=envelope_in(envelope),
        status=AACPOutcome(status),
        timestamp=timestamp,
        expires_at=expires_at,
        retry_count=retry_count,
        next_retry_at=next_retry_at,
    )


def envelope_in(encoded: bytes) -> AACPEnvelope:
    """An envelope from the column `envelope`."""
    return msgspec.json.decode(encoded, type=AACPEnvelope)
