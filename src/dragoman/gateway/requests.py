"""The port to requests that are carried out later: each is kept with the message that stands for it.

1. Everything that a method stores, it stores together or not at all: the request, its message, the reply, the nonce,
   and what becomes of the message that was delivered.
2. A request is known by its tenant, its principal and its id. A second one with the same is the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from dragoman.errors import Conflict
from dragoman.gateway.port import Nonce
from dragoman.knowledge.port import AuditEvent
from dragoman.messaging.bus import BusDelivery, BusMessage

KEPT_SECONDS: Final = 86_400.0
"""How long the answer to a request can be fetched, at least."""
STREAM: Final = "stream"
"""The header of a message whose request has a `seq`: the stream that it is part of."""
KEPT_DEAD_SECONDS: Final = 30 * 86_400.0
"""How long dead letters are kept, and the answers to their requests."""


class RequestStatus(StrEnum):
    """The state of a request."""

    ACCEPTED = "accepted"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"


class RequestKey(NamedTuple):
    """Identifies a request."""

    tenant: str
    principal: str
    request_id: str


MakeReply: TypeAlias = Callable[[bytes], BusMessage]
"""Makes the reply that has a body."""


class KeptRequest(Struct, frozen=True, kw_only=True):
    """A request that was accepted."""

    key: RequestKey
    fingerprint: bytes
    """The same for two requests that ask for the same."""
    status: RequestStatus = RequestStatus.ACCEPTED
    http_status: int | None = None
    """Of its answer, as is the next. None while there is none."""
    body: bytes | None = None
    is_new: bool = True
    """False where `accept` found it."""
    most_kept: int | None = None
    """Bytes of answers that may be kept for its tenant, which its own answer counts among; None: that does not."""


class Settled(Struct, frozen=True, kw_only=True):
    """The outcome of a delivery."""

    status: RequestStatus
    """COMPLETED: it is acknowledged; RETRYING: it is delivered again; FAILED: it is given up."""
    request: RequestKey | None = None
    """None for a message that was never accepted."""
    http_status: int | None = None
    body: bytes | None = None
    reply: BusMessage | None = None
    error: bytes = b""
    """JSON of the error, of a delivery that is retried or given up."""
    after_seconds: float = 0.0
    """Until it is retried."""
    most_kept: int | None = None
    """See `KeptRequest`."""


class ActionRequests(Protocol):
    """Raises `StorageError`s, and `BusFull`."""

    async def accept(
        self,
        request: KeptRequest,
        message: BusMessage,
        reply_again: MakeReply | None = None,
        nonce: Nonce | None = None,
        came_in: BusDelivery | None = None,
    ) -> KeptRequest | None:
        """Keep a request and publish its message, use the nonce, and acknowledge the message that it came in.

        If it was accepted before, that one is returned and its message is not published; `reply_again` then makes the
        message for the answer, if there is one. It is the same if the message that it came
        in was delivered again by now. None if the nonce cannot be used.
        Raises `Conflict` for a request that has the id of another one, and `QuotaExceeded` for one whose answer
        could not be kept.
        """
        ...

    async def find(self, tenants: Set[str], principal: str, request_id: str) -> KeptRequest | None: ...

    async def is_behind(self, delivery: BusDelivery) -> bool:
        """Whether somebody holds a message of the same subject and stream that was accepted before this one."""
        ...

    async def settle(self, delivery: BusDelivery, settled: Settled, nonce: Nonce | None = None) -> bool:
        """Store what became of a delivery. False if it was delivered again by now, or the nonce cannot be used.

        Raises `QuotaExceeded` for an answer that is too large to be kept, and has stored nothing then.
        """
        ...

    async def redrive(
        self, number: int, headers: Mapping[str, str] | None, request: RequestKey | None, event: AuditEvent
    ) -> int | None:
        """Deliver a dead letter again, as `DeadLetters` does it, and its request waits anew; the event is noted."""
        ...

    async def forget(self, limit: int, until: float | None = None) -> int:
        """Forget up to so many requests whose answers were kept long enough at `until`, by default now; how many."""
        ...


def request_conflict() -> Conflict:
    """The error for a request that has the id of another one."""
    facts = {"reason": "request_conflict", "retryable": False}
    return Conflict("The request_id was used before, for another request", facts)


def kept_until(status: RequestStatus, now: float) -> float | None:
    """When a request in this state is forgotten; None: not as long as it is."""
    if status is RequestStatus.COMPLETED:
        return now + KEPT_SECONDS
    return now + KEPT_DEAD_SECONDS if status is RequestStatus.FAILED else None
