"""Makes the messages that go into the ledger: their ids, times and limits."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from msgspec import Struct

from dragoman.access.callers import Caller
from dragoman.agents.ledger import LedgerEntry, MessageKind, NewEntry
from dragoman.agents.senders import kept_caller
from dragoman.calls.limits import encode_arguments
from dragoman.clock import Clock
from dragoman.errors import PayloadTooLarge
from dragoman.ids import Ids


class Drafts(Struct, frozen=True, eq=False):
    """`space` keeps the ids of requests apart that handlers of different servers make."""

    clock: Clock
    ids: Ids
    space: str
    ttl_ms: int
    max_payload_bytes: int

    def now(self) -> float:
        """Seconds of the epoch."""
        return self.clock.now().timestamp()

    def message_id(self, at: float | None = None) -> str:
        """A UUID of version 4 that begins with the time: random ones would be all over the ledger's index."""
        stamp = f"{int((self.now() if at is None else at) * 1000):012x}"
        return f"{stamp[:8]}-{stamp[8:]}{self.ids.run_id()[13:]}"

    def derived_id(self, number: int, count: int) -> str:
        """The id of a request that the handling of a message makes: the same if it is run again."""
        digits = sha256(f"{self.space}/{number}/{count}".encode()).hexdigest()
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:32]}"

    def encode(self, message_type: str, payload: Any) -> bytes:
        """The JSON of a message; raises `ToolError` for a payload that cannot be sent."""
        encoded = encode_arguments({"type": message_type, "payload": payload})
        if len(encoded) > self.max_payload_bytes:
            raise PayloadTooLarge(len(encoded), self.max_payload_bytes)
        return encoded

    def make(
        self,
        kind: MessageKind,
        target: str,
        payload: Any,
        message_type: str,
        source: str,
        caller: Caller,
        correlation_id: str | None,
        request_id: str | None = None,
        chain: tuple[str, ...] = (),
        ttl_ms: int | None = None,
    ) -> NewEntry:
        """A message from an agent or a client; raises `ToolError` for a payload that cannot be sent."""
        encoded = self.encode(message_type, payload)
        now = self.now()
        return NewEntry(
            message_id=self.message_id(now),
            kind=kind,
            source=source,
            target=target,
            owner=source,
            payload=encoded,
            accepted_at=now,
            expires_at=now + (self.ttl_ms if ttl_ms is None else ttl_ms) / 1000,
            request_id=request_id,
            correlation_id=correlation_id or self.ids.correlation_id(),
            caller=kept_caller(caller),
            chain=chain,
        )

    def response_to(self, entry: LedgerEntry, payload: bytes) -> NewEntry:
        """The response to a request. It is kept as long as the request."""
        now = self.now()
        return NewEntry(
            message_id=self.message_id(now),
            kind="RESPONSE",
            source=entry.target,
            target=entry.source,
            owner=entry.owner,
            payload=payload,
            accepted_at=now,
            expires_at=entry.expires_at,
            request_id=entry.request_id,
            correlation_id=entry.correlation_id,
        )
