"""Whoever is at the other end, as the kernel needs to know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dragoman.access.callers import Caller
from dragoman.calls.call import Withdrawal
from dragoman.calls.origin import Origin
from dragoman.errors import InvalidRequest
from dragoman.protocol.session import Refusal, Request, Session
from dragoman.telemetry.log import Logger


class Listener(Protocol):
    """A client that can be told something at any time, not only about a request of its own."""

    log_level: str | None
    """The least important log messages that it wants."""

    @property
    def is_listening(self) -> bool:
        """Whether it is past its handshake, and still there."""
        ...

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        ...


class Peer(Protocol):
    """A connection, a session, or the client of a single exchange."""

    @property
    def caller(self) -> Caller: ...

    @property
    def transport(self) -> str:
        """The name of the transport, as it is recorded."""
        ...

    @property
    def session(self) -> Session | None:
        """The handshake that was made, if there was one."""
        ...

    @property
    def listener(self) -> Listener:
        """Whoever it is beyond the request; only in the handshake era."""
        ...

    def origin_for(self, meta: Mapping[str, Any], *, modern: bool) -> Origin:
        """Where the call comes from that a request with this `_meta` asks for."""
        ...

    def why_cancelled(self) -> Withdrawal:
        """Why the request was cancelled; asked when it was."""
        ...

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification that belongs to the request."""
        ...

    async def drained(self) -> None:
        """Wait while the client is behind with reading."""
        ...


class Kernel(Protocol):
    """Whatever serves the methods that the lane does not."""

    async def handle(self, peer: Peer, request: Request) -> dict[str, Any]:
        """The complete result; raises `ProtocolError`."""
        ...


def id_in_use() -> InvalidRequest:
    """The error that answers a request with the id of another one that is not answered yet."""
    return InvalidRequest("Invalid request: a request with this id is under way")


def log_refusal(logger: Logger, refusal: Refusal, facts: Mapping[str, Any] | None = None) -> None:
    """Log a protocol error, once, under the correlation id that the client is told."""
    logger.warn(
        "message refused",
        {
            "correlationId": refusal.correlation_id,
            "outcome": "protocol_error",
            "error": {"code": str(refusal.code), "message": refusal.message},
            **(facts or {}),
        },
    )
