"""A request of the lane as the SDK sees it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NoReturn

import anyio
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.transport_context import TransportContext

from dragoman.calls.intake import progress_params
from dragoman.edge.peer import Peer
from dragoman.protocol.session import Request

_current: ContextVar[Channel | None] = ContextVar("channel", default=None)
"""The request that this task serves: the SDK's handlers are not told. None: one of an HTTP session."""


def served_peer() -> Peer | None:
    """Whose request this task serves; None: somebody with an HTTP session."""
    channel = _current.get()
    return None if channel is None else channel.peer


class Channel:
    """The ids of one request, and the way back to the client for notifications."""

    def __init__(self, peer: Peer, request: Request) -> None:
        self.peer: Peer | None = peer
        self._token = request.meta.get("progressToken")
        self.request_id = request.id
        self.transport = TransportContext(kind=peer.transport, can_send_request=False)
        self.can_send_request = False
        self.message_metadata = None
        self.cancel_requested = anyio.Event()
        _current.set(self)

    def close(self) -> None:
        """The request has been served. The SDK's parts lead to each other, and timers to this task's variables."""
        self.peer = None

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> NoReturn:
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: Any = None) -> None:
        if self.peer is not None:
            await self.peer.drained()
        if self.peer is not None:
            self.peer.notify(method, params)

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self._token is not None and self.peer is not None:
            self.peer.notify("notifications/progress", progress_params(self._token, progress, total, message))
