"""The ledger of an endpoint: which messages it has sent and accepted, and what became of each request.

It is as durable as its adapter: over the in-memory adapter it is best effort for one process lifetime, and not durable
across restarts.

Deduplication is `append`, one atomic operation of the adapter, and not a look-up followed by a write: of all messages
with one `requestId`, it calls exactly one new. `check_duplicate` only tells what is known.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace as changed

from dragoman.agents.aacp.envelope import (
    AACPEnvelope,
    AACPMessageStatus,
    AACPMessageType,
    AACPOutcome,
    AACPResponse,
    response_in,
)
from dragoman.agents.aacp.records import AACPMessageRecord, AACPPersistenceAdapter, AACPRequestRecord
from dragoman.clock import Clock
from dragoman.errors import RequestConflict, StructuredError

MOST_INLINE_BYTES = 65_536
"""Of a result in its request record. A larger one is in the record of its message, which `completionRef` names."""


class Appended(Struct, frozen=True):
    """The result of `append`. Only a message that is new may be handled; `known` is the request as it was before."""

    is_new: bool
    known: AACPRequestRecord | None = None


class AACPLedger:
    """Records messages by `messageId` and requests by `requestId`, and answers what became of them."""

    def __init__(self, adapter: AACPPersistenceAdapter, clock: Clock) -> None:
        self.adapter = adapter
        self._clock = clock

    async def append(self, envelope: AACPEnvelope) -> Appended:
        """Record a message and, if it has a `requestId`, the request; raises `RequestConflict`.

        A response that is no answer to a known request is recorded as a message only.

        The message comes first: if the process ends between the two, the request is new when the message is sent again.
        """
        if await self.adapter.put_message_record(self._message(envelope)):
            return Appended(False, await self.check_duplicate(envelope))
        if envelope.request_id is None:
            return Appended(True)
        if envelope.message_type is AACPMessageType.RESPONSE and await self.answer_in(envelope) is None:
            return Appended(False)
        known = await self.adapter.put_request_record(self._request(envelope, envelope.request_id))
        if known is None:
            return Appended(True)
        _check_same(known, envelope.target_agent_id, envelope.payload)
        return Appended(False, known)

    async def check_duplicate(self, envelope: AACPEnvelope) -> AACPRequestRecord | None:
        """The request of an envelope as far as it is known; raises `RequestConflict` if it is another request."""
        if envelope.request_id is None:
            return None
        known = await self.adapter.get_request_record(envelope.request_id, envelope.owner, envelope.message_type)
        if known is not None:
            _check_same(known, envelope.target_agent_id, envelope.payload)
        return known

    async def check_request(self, request_id: str, owner: str, target: str, payload: Any) -> AACPRequestRecord | None:
        """The record of a request that is to be made, if any; raises `RequestConflict` if it is another request."""
        known = await self.adapter.get_request_record(request_id, owner)
        if known is not None:
            _check_same(known, target, payload)
        return known

    async def remember(self, envelope: AACPEnvelope) -> None:
        """Record a repeated transmission by its `messageId`, without its payload, as one that needs nothing more."""
        await self.adapter.put_message_record(self._message(changed(envelope, payload=None), AACPOutcome.COMPLETED))

    async def mark_completed(self, message_id: str, completion_ref: str | None = None) -> None:
        """Record that a message was processed: first its request, then the message."""
        await self._settle(message_id, AACPResponse(outcome=AACPOutcome.COMPLETED), completion_ref)

    async def mark_failed(self, message_id: str, error: StructuredError) -> None:
        """Record that a message failed for good: first its request, then the message."""
        await self._settle(message_id, AACPResponse(outcome=AACPOutcome.FAILED, error=error))

    async def settle_request(self, request_id: str, owner: str, response: AACPResponse, ref: str | None = None) -> bool:
        """Give a request the outcome of a response; False if it is not known, or has an outcome already."""
        if response.error is not None:
            return await self.adapter.mark_failed(request_id, response.error, owner=owner)
        return await self.adapter.mark_completed(request_id, response.outcome, ref, owner=owner)

    async def finish_message(self, message_id: str, outcome: AACPOutcome) -> None:
        """Record the outcome of a message alone. FAILED makes it a dead letter while its request stays UNKNOWN."""
        if record := await self.adapter.get_message_record(message_id):
            await self.adapter.put_message_record(changed(record, status=outcome, next_retry_at=None), replace=True)

    async def get_by_message_id(self, message_id: str) -> AACPEnvelope | None:
        record = await self.adapter.get_message_record(message_id)
        return record.envelope if record else None

    async def get_unacknowledged(self, source_agent_id: str, target_agent_id: str) -> list[AACPEnvelope]:
        return await self.adapter.get_unacknowledged_messages(source_agent_id, target_agent_id)

    async def get_status(self, message_id: str) -> AACPMessageStatus | None:
        """The status of a message; for a request, the outcome of the request."""
        record = await self.adapter.get_message_record(message_id)
        if record is None:
            return None
        request = None
        if record.request_id is not None:
            request = await self.adapter.get_request_record(record.request_id, record.envelope.owner)
        return AACPMessageStatus(
            message_id=message_id,
            request_id=record.request_id,
            outcome=request.status if request else record.status,
            timestamp=record.timestamp,
            error=request.error if request else None,
            completion_ref=request.completion_ref if request else None,
        )

    async def response_to(self, request_id: str, owner: str) -> AACPResponse | None:
        """The response to a request, the same for every caller; None if there is none."""
        record = await self.adapter.get_request_record(request_id, owner, AACPMessageType.RESPONSE)
        if record is None:
            return None
        payload = record.payload
        if record.completion_ref is not None:
            message = await self.adapter.get_message_record(record.completion_ref)
            payload = message.envelope.payload if message else None
        return response_in(payload)

    async def answer_in(self, envelope: AACPEnvelope) -> AACPResponse | None:
        """The response in an envelope; None unless it has an outcome and comes from the agent that was asked."""
        response = response_in(envelope.payload)
        if response is None or response.outcome is AACPOutcome.UNKNOWN or envelope.request_id is None:
            return None
        request = await self.adapter.get_request_record(envelope.request_id, envelope.owner)
        return response if request is not None and request.target_agent_id == envelope.source_agent_id else None

    def _message(self, envelope: AACPEnvelope, status: AACPOutcome = AACPOutcome.UNKNOWN) -> AACPMessageRecord:
        return AACPMessageRecord(
            message_id=envelope.message_id,
            request_id=envelope.request_id,
            envelope=envelope,
            status=status,
            timestamp=self._clock.timestamp(),
        )

    def _request(self, envelope: AACPEnvelope, request_id: str) -> AACPRequestRecord:
        record = AACPRequestRecord(
            request_id=request_id,
            source_agent_id=envelope.source_agent_id,
            target_agent_id=envelope.target_agent_id,
            message_type=envelope.message_type,
            payload=envelope.payload,
            status=AACPOutcome.UNKNOWN,
            timestamp=self._clock.timestamp(),
        )
        if envelope.message_type is not AACPMessageType.RESPONSE:
            return record
        response = response_in(envelope.payload)
        if response is not None:
            record = changed(record, status=response.outcome, error=response.error)
        if len(msgspec.json.encode(envelope.payload)) > MOST_INLINE_BYTES:
            record = changed(record, payload=None, completion_ref=envelope.message_id)
        return record

    async def _settle(self, message_id: str, response: AACPResponse, ref: str | None = None) -> None:
        record = await self.adapter.get_message_record(message_id)
        if record is not None and record.request_id is not None and record.envelope.owner is not None:
            await self.settle_request(record.request_id, record.envelope.owner, response, ref)
        await self.finish_message(message_id, response.outcome)


def _check_same(known: AACPRequestRecord, target: str, payload: Any) -> None:
    if known.message_type is not AACPMessageType.REQUEST:
        return  # The first response counts; whatever another one says, nobody acts on it.
    if known.target_agent_id != target or _body(known.payload) != _body(payload):
        raise RequestConflict(known.request_id, known.owner)


def _body(payload: Any) -> bytes:
    return msgspec.json.encode(payload, order="deterministic")
