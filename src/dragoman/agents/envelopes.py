"""Messages of the ledger as the envelopes that AACP carries between ledgers."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from dragoman.agents.aacp.envelope import AACPEnvelope, AACPMessageType
from dragoman.agents.ledger import LedgerEntry
from dragoman.clock import iso_milliseconds


def envelope_of(entry: LedgerEntry) -> AACPEnvelope:
    """A message as an envelope; raises `InvalidEnvelope` for ids that AACP does not allow.

    The payload is what the ledger keeps: of a request or an event an object with `type` and `payload`, of a response
    the result, or None if that is kept apart. There is no `ack`: what a ledger has accepted has been received.
    """
    return AACPEnvelope(
        message_id=entry.message_id,
        request_id=entry.request_id,
        source_agent_id=entry.source,
        target_agent_id=entry.target,
        seq=entry.seq,
        message_type=AACPMessageType(entry.kind),
        timestamp=iso_milliseconds(datetime.fromtimestamp(entry.accepted_at, UTC)),
        payload=msgspec.json.decode(entry.payload) if entry.payload else None,
    )
