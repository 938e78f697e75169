"""Whoever is at the other end, as the kernel needs to know them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from dragoman.access.callers import Caller
from dragoman.errors import InvalidRequest
from dragoman.protocol.jsonrpc import Id
from dragoman.protocol.results import ToolResult
from dragoman.protocol.session import Refusal, Request, Session
from dragoman.telemetry.log import Logger
from dragoman.tools.client import Client
from dragoman.tools.context import Progress


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
    def protocol_version(self) -> str | None:
        """The one that a handshake agreed on; in the modern era each request names its own."""
        ...

    @property
    def session_id(self) -> str | None:
        """The HTTP session that it has."""
        ...

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Those of the HTTP request, as they came; none without HTTP."""
        ...

    @property
    def listener(self) -> Listener:
        """Whoever it is beyond the request; only in the handshake era."""
        ...

    @property
    def is_gone(self) -> bool:
        """Whether the client has left."""
        ...

    def client_for(self, meta: Mapping[str, Any], *, modern: bool) -> Client:
        """The client as the function sees it that serves a request with this `_meta`."""
        ...

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification that belongs to the request."""
        ...

    async def drained(self) -> None:
        """Wait while the client is behind with reading."""
        ...


class SessionPeer(Client, Protocol):
    """The client of an HTTP session that the SDK serves, during one call."""

    @property
    def has_withdrawn(self) -> bool:
        """Whether it has cancelled the call; its stream may end without that."""
        ...


CallTool: TypeAlias = Callable[
    [Peer, Id, str, dict[str, Any], Mapping[str, Any], SessionPeer | None], Awaitable[ToolResult]
]
"""Takes whose call it is, its request's id, its name, arguments and `_meta`, and the way back; returns its result."""


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


def progress_of(notify: Callable[[str, Mapping[str, Any]], None], token: int | str) -> Progress:
    """How a call tells a client that asked for it, with `token`, how far it is."""

    def progress(done: float, total: float | None, message: str | None) -> None:
        facts = {"progressToken": token, "progress": done, "total": total, "message": message}
        notify("notifications/progress", {key: value for key, value in facts.items() if value is not None})

    return progress
