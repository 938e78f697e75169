"""The records of requests and messages, and the port to the storage of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct

from dragoman.agents.aacp.envelope import AACPEnvelope, AACPMessageType, AACPOutcome
from dragoman.errors import StructuredError

DEFAULT_TTL_MS = 86_400_000


class AACPRequestRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A request or the response to it; two rows that share `request_id` and owner, and differ in `message_type`.

    The payload is inline, but for a large result: then `completion_ref` is the id of the message record that has it.
    `completion_ref` of a completed REQUEST is the id of the RESPONSE.
    """

    request_id: str
    source_agent_id: str
    target_agent_id: str
    message_type: AACPMessageType
    payload: Any
    status: AACPOutcome
    timestamp: str
    expires_at: str | None = None
    completion_ref: str | None = None
    error: StructuredError | None = None

    @property
    def owner(self) -> str:
        """The agent that made the request: the source of a REQUEST, the target of a RESPONSE."""
        is_response = self.message_type is AACPMessageType.RESPONSE
        return self.target_agent_id if is_response else self.source_agent_id

    @property
    def is_settled(self) -> bool:
        """Whether the outcome is known, and so can no longer change."""
        return self.status is not AACPOutcome.UNKNOWN


class AACPMessageRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A message: the envelope of its first transmission, and how often it was sent again since.

    Later transmissions differ in `messageId`, `ack` and `timestamp` only, and have no record of their own at the
    sender. A FAILED message whose request is still UNKNOWN is a dead letter.
    """

    message_id: str
    request_id: str | None = None
    envelope: AACPEnvelope
    status: AACPOutcome
    timestamp: str
    expires_at: str | None = None
    retry_count: int = 0
    next_retry_at: str | None = None


class AACPPersistenceAdapter(Protocol):
    """Keeps what one endpoint knows: two endpoints never share an adapter.

    Every operation is atomic. Records are returned oldest first. Outcomes are final: once a request is COMPLETED or
    FAILED, marking it again changes nothing. A record without `expires_at` gets one when it is put; a record with a
    time that is none is refused with `InvalidEnvelope`. Requests are found by their id and the agent that made them;
    without `owner`, the oldest of that id is meant. Sequence numbers and acknowledgements never go down and are never
    purged.
    """

    async def put_request_record(self, record: AACPRequestRecord) -> AACPRequestRecord | None:
        """Keep the record unless there is one of the same owner, id and type; returns the one that was there."""
        ...

    async def get_request_record(
        self, request_id: str, owner: str | None = None, message_type: AACPMessageType = AACPMessageType.REQUEST
    ) -> AACPRequestRecord | None: ...

    async def put_message_record(self, record: AACPMessageRecord, *, replace: bool = False) -> AACPMessageRecord | None:
        """Keep the record, with `replace` in place of an older one; returns the one that was there.

        A message that has an outcome is never replaced by one that has none.
        """
        ...

    async def get_message_record(self, message_id: str) -> AACPMessageRecord | None: ...

    async def mark_completed(
        self, request_id: str, outcome: AACPOutcome, completion_ref: str | None = None, *, owner: str | None = None
    ) -> bool:
        """Give a REQUEST its outcome; False if there is none of that id, or it has one already."""
        ...

    async def mark_failed(self, request_id: str, error: StructuredError, *, owner: str | None = None) -> bool:
        """The same with FAILED and an error."""
        ...

    async def get_last_sequence(self, source_agent_id: str, target_agent_id: str) -> int:
        """The number of the last message that was sent; 0 if there is none."""
        ...

    async def update_last_sequence(self, source_agent_id: str, target_agent_id: str, seq: int) -> None: ...

    async def get_last_ack(self, source_agent_id: str, target_agent_id: str) -> int:
        """The highest number up to which everything was received; 0 if there is none."""
        ...

    async def update_last_ack(self, source_agent_id: str, target_agent_id: str, ack: int) -> None: ...

    async def get_unacknowledged_messages(self, source_agent_id: str, target_agent_id: str) -> list[AACPEnvelope]:
        """The messages above `get_last_ack` that are UNKNOWN, in the order of `seq`."""
        ...

    async def list_pending_requests(self, older_than: datetime | None = None) -> list[AACPRequestRecord]:
        """REQUESTs that are UNKNOWN; with `older_than`, those that were recorded before it."""
        ...

    async def list_messages_in_state(
        self, outcome: AACPOutcome, older_than: datetime | None = None
    ) -> list[AACPMessageRecord]: ...

    async def purge_expired(self, now: datetime) -> int:
        """Delete the request and message records that expire at `now` or before; returns how many."""
        ...


class AACPRecords(Protocol):
    """The records of all endpoints that share a storage."""

    def for_agent(self, agent_id: str, default_ttl_ms: int = DEFAULT_TTL_MS) -> AACPPersistenceAdapter:
        """The records of one agent's endpoint, the same ones every time; for one endpoint at a time."""
        ...
