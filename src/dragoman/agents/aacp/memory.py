"""Records in memory.

The in-memory AACPPersistenceAdapter provides best-effort tracking for a single process lifetime only and MUST NOT be
considered durable across restarts. Durable storage is left to v0.2, whose first adapter is the `AACPRecords` of a
server's database.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TypeVar

from msgspec.structs import replace as changed

from dragoman.agents.aacp.envelope import AACPEnvelope, AACPMessageType, AACPOutcome, moment
from dragoman.agents.aacp.records import DEFAULT_TTL_MS, AACPMessageRecord, AACPRequestRecord
from dragoman.clock import Clock, iso_milliseconds
from dragoman.errors import StructuredError

Record = TypeVar("Record", AACPRequestRecord, AACPMessageRecord)
_RequestKey = tuple[str, str, AACPMessageType]


class InMemoryAACPPersistenceAdapter:
    """Keeps records in maps, for one process lifetime; the default where no durable adapter is given.

    Not durable across restarts. No operation waits for anything, which makes each of them atomic on its event loop.
    """

    def __init__(self, clock: Clock, default_ttl_ms: int = DEFAULT_TTL_MS) -> None:
        self._clock = clock
        self._ttl = timedelta(milliseconds=default_ttl_ms)
        self._requests: dict[_RequestKey, AACPRequestRecord] = {}
        self._messages: dict[str, AACPMessageRecord] = {}
        self._sequences: dict[str, int] = {}
        self._acks: dict[str, int] = {}

    async def put_request_record(self, record: AACPRequestRecord) -> AACPRequestRecord | None:
        key = (record.request_id, record.owner, record.message_type)
        known = self._requests.get(key)
        if known is None:
            self._requests[key] = self._with_expiry(record)
        return known

    async def get_request_record(
        self, request_id: str, owner: str | None = None, message_type: AACPMessageType = AACPMessageType.REQUEST
    ) -> AACPRequestRecord | None:
        if owner is not None:
            return self._requests.get((request_id, owner, message_type))
        matching = (
            record
            for record in self._requests.values()
            if record.request_id == request_id and record.message_type is message_type
        )
        return next(matching, None)

    async def put_message_record(self, record: AACPMessageRecord, *, replace: bool = False) -> AACPMessageRecord | None:
        known = self._messages.get(record.message_id)
        is_step_back = known is not None and known.status is not AACPOutcome.UNKNOWN is record.status
        if known is None or (replace and not is_step_back):
            self._messages[record.message_id] = self._with_expiry(record)
        return known

    async def get_message_record(self, message_id: str) -> AACPMessageRecord | None:
        return self._messages.get(message_id)

    async def mark_completed(
        self, request_id: str, outcome: AACPOutcome, completion_ref: str | None = None, *, owner: str | None = None
    ) -> bool:
        known = await self.get_request_record(request_id, owner)
        return self._settle(known, status=outcome, completion_ref=completion_ref)

    async def mark_failed(self, request_id: str, error: StructuredError, *, owner: str | None = None) -> bool:
        known = await self.get_request_record(request_id, owner)
        return self._settle(known, status=AACPOutcome.FAILED, error=error)

    async def get_last_sequence(self, source_agent_id: str, target_agent_id: str) -> int:
        return self._sequences.get(f"{source_agent_id}:{target_agent_id}", 0)

    async def update_last_sequence(self, source_agent_id: str, target_agent_id: str, seq: int) -> None:
        _raise_to(self._sequences, f"{source_agent_id}:{target_agent_id}", seq)

    async def get_last_ack(self, source_agent_id: str, target_agent_id: str) -> int:
        return self._acks.get(f"{source_agent_id}:{target_agent_id}", 0)

    async def update_last_ack(self, source_agent_id: str, target_agent_id: str, ack: int) -> None:
        _raise_to(self._acks, f"{source_agent_id}:{target_agent_id}", ack)

    async def get_unacknowledged_messages(self, source_agent_id: str, target_agent_id: str) -> list[AACPEnvelope]:
        last_ack = await self.get_last_ack(source_agent_id, target_agent_id)
        envelopes = [
            record.envelope
            for record in self._messages.values()
            if record.status is AACPOutcome.UNKNOWN
            and record.envelope.source_agent_id == source_agent_id
            and record.envelope.target_agent_id == target_agent_id
            and record.envelope.seq > last_ack
        ]
        return sorted(envelopes, key=lambda envelope: envelope.seq)

    async def list_pending_requests(self, older_than: datetime | None = None) -> list[AACPRequestRecord]:
        return [
            record
            for record in self._requests.values()
            if record.message_type is AACPMessageType.REQUEST
            and record.status is AACPOutcome.UNKNOWN
            and _is_older(record, older_than)
        ]

    async def list_messages_in_state(
        self, outcome: AACPOutcome, older_than: datetime | None = None
    ) -> list[AACPMessageRecord]:
        return [
            record for record in self._messages.values() if record.status is outcome and _is_older(record, older_than)
        ]

    async def purge_expired(self, now: datetime) -> int:
        requests = [key for key, record in self._requests.items() if _has_expired(record, now)]
        messages = [key for key, record in self._messages.items() if _has_expired(record, now)]
        for key in requests:
            del self._requests[key]
        for message_id in messages:
            del self._messages[message_id]
        return len(requests) + len(messages)

    def _with_expiry(self, record: Record) -> Record:
        moment("timestamp", record.timestamp)  # Now, rather than whenever records are listed or purged.
        if record.expires_at is not None:
            moment("expiresAt", record.expires_at)
            return record
        return changed(record, expires_at=iso_milliseconds(self._clock.now() + self._ttl))

    def _settle(self, known: AACPRequestRecord | None, **outcome: object) -> bool:
        if known is None or known.is_settled:
            return False
        self._requests[known.request_id, known.owner, known.message_type] = changed(known, **outcome)
        return True


def _raise_to(numbers: dict[str, int], pair: str, number: int) -> None:
    numbers[pair] = max(number, numbers.get(pair, 0))


def _is_older(record: AACPRequestRecord | AACPMessageRecord, than: datetime | None) -> bool:
    return than is None or moment("timestamp", record.timestamp) < than


def _has_expired(record: AACPRequestRecord | AACPMessageRecord, now: datetime) -> bool:
    return record.expires_at is not None and moment("expiresAt", record.expires_at) <= now
