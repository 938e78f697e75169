"""A request of the lane as the SDK sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

import anyio
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.transport_context import TransportContext

from dragoman.calls.intake import progress_params
from dragoman.edge.peer import Peer
from dragoman.protocol.session import Request

_current: ContextVar[Channel | None] = ContextVar("channel", default=None)
"""The request that this task serves: the SDK's handlers are not told. None: one of an HTTP session."""


ACKNOWLEDGED = "notifications/subscriptions/acknowledged"


def current_channel() -> Channel | None:
    """The request that this task serves."""
    return _current.get()


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
        self.task_ids: Sequence[str] | None = None
        """The tasks that a `subscriptions/listen` is told about, of which the SDK knows nothing."""
        self._untold: list[Mapping[str, Any]] | None = []
        """Changes of tasks from before the client was told that it listens; None since then."""
        _current.set(self)

    def close(self) -> None:
        """The request has been served. The SDK's parts lead to each other, and timers to this task's variables."""
        self.peer = None

    async def send_raw_request(self, method: str, params: Any, opts: Any = None) -> NoReturn:
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: Any = None) -> None:
        if self.peer is not None:
            await self.peer.drained()
        if self.peer is None:
            return
        if method == ACKNOWLEDGED and self.task_ids is not None:
            known = params or {}
            params = {**known, "notifications": {**known.get("notifications", {}), "taskIds": self.task_ids}}
        self.peer.notify(method, params)
        if method == ACKNOWLEDGED:
            untold, self._untold = self._untold, None
            for task in untold or ():
                self.tell_task(task)

    def tell_task(self, task: Mapping[str, Any]) -> None:
        """Tell the client about the change of a task, once it has been told that it listens."""
        if self._untold is not None:
            self._untold.append(task)
        elif self.peer is not None:
            meta = {**task.get("_meta", {}), SUBSCRIPTION_ID_META_KEY: self.request_id}
            self.peer.notify("notifications/tasks", {**task, "_meta": meta})

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self._token is not None and self.peer is not None:
            self.peer.notify("notifications/progress", progress_params(self._token, progress, total, message))
