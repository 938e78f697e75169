"""The client of an HTTP session, as calls and notifications see it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import anyio
import msgspec
from mcp.server.connection import Connection as SdkConnection
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp_types import CONNECTION_CLOSED

from dragoman.access.callers import Caller
from dragoman.calls.call import Withdrawal
from dragoman.calls.origin import Origin
from dragoman.errors import ClientCannotBeAsked, ClientRefused

CALLER = "dragoman.caller"
TRANSPORT = "dragoman.transport"
"""What an HTTP request's scope says about whose it is, and how it came."""
_LISTENER = "dragoman.listener"
"""Where a session's state keeps whoever is at its other end."""
_MOST_QUEUED = 256
_MOST_QUEUED_BYTES = 1024 * 1024
"""What a slow client may be behind with, on one stream; further notifications are dropped until it has caught up."""
_LAST_WORDS = 1.0
"""Seconds, at most, between the end of a call and that of its stream."""


class SessionListener:
    """The client of an HTTP session, beyond any one request."""

    def __init__(self, connection: SdkConnection) -> None:
        self._connection = connection
        self._telling: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.log_level: str | None = "info"

    @property
    def is_listening(self) -> bool:
        return self._connection.initialized.is_set()

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """On the session's own stream, or kept for when the client opens one; once, while it is still to be read."""
        said = method, str(params)
        if said not in self._telling and len(self._telling) < _MOST_QUEUED:
            telling = asyncio.get_running_loop().create_task(self._connection.notify(method, params))
            self._telling[said] = telling
            telling.add_done_callback(lambda _: self._telling.pop(said, None))


def listener_of(connection: SdkConnection) -> SessionListener:
    """The one listener that a session has."""
    found: SessionListener | None = connection.state.get(_LISTENER)
    if found is None:
        found = connection.state[_LISTENER] = SessionListener(connection)
    return found


class SessionClient:
    """The client of an HTTP session, during one call: the SDK carries what it is told and asked."""

    session = None

    def __init__(self, context: Any) -> None:
        self._context = context
        self._session = context.session
        scope = context.request.scope
        self.caller: Caller = scope[CALLER]
        self.transport: str = scope[TRANSPORT]
        self.can_be_asked: bool = context.session.can_send_request
        self.listener = listener_of(context.session._connection)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._queue: list[tuple[str, Mapping[str, Any] | None, int]] = []
        self._queued_bytes = 0
        self._telling: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[Any]] = set()

    @property
    def capabilities(self) -> Mapping[str, Any]:
        declared = self._session.client_capabilities
        return {} if declared is None else declared.model_dump(mode="json", by_alias=True, exclude_none=True)

    @property
    def log_level(self) -> str | None:
        return self.listener.log_level

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send in order and ahead of the answer; what a slow client cannot take is dropped. From any thread."""
        size = len(msgspec.json.encode(params))
        if threading.get_ident() == self._thread:
            self._put(method, params, size)
        else:
            self._loop.call_soon_threadsafe(self._put, method, params, size)

    def origin_for(self, meta: Mapping[str, Any], *, modern: bool) -> Origin:
        """Where the call comes from; not kept, because it leads back here."""
        context = self._context
        return Origin(
            self.caller,
            self.transport,
            self,
            modern,
            context.protocol_version,
            self._session._connection.session_id,
            context.request.scope["headers"],
        )

    def why_cancelled(self) -> Withdrawal:
        """That a stream ends cancels nothing: the client may be back for the answer. The end of its session does."""
        return "client" if self._session._request_outbound.cancel_requested.is_set() else "disconnect"

    async def drained(self) -> None:
        """Wait until the client has been told everything."""
        await self.told()

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request on the call's own stream, and wait for the result."""
        asking = asyncio.current_task()
        assert asking is not None
        self._asking.add(asking)
        try:
            answer: dict[str, Any] = await self._session._request_outbound.send_raw_request(method, params)
        except NoBackChannelError:
            raise ClientCannotBeAsked(method) from None
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise ClientRefused(error.code, error.message[:200]) from None
            await asyncio.sleep(_LAST_WORDS)  # The call is about to be withdrawn, which says better what happened.
            raise ClientCannotBeAsked(method) from None
        finally:
            self._asking.discard(asking)
        return answer

    async def questions_withdrawn(self) -> None:
        """The call is cancelled: its stream must not end before the client knows that its questions are, too."""
        with anyio.move_on_after(_LAST_WORDS, shield=True):
            while self._asking:
                await asyncio.wait(self._asking)

    async def told(self) -> None:
        """Wait until everything that was to be said has been."""
        await asyncio.sleep(0)  # What another thread said a moment ago is still on its way here.
        if self._telling is not None:
            await self._telling

    def _put(self, method: str, params: Mapping[str, Any] | None, size: int) -> None:
        if len(self._queue) < _MOST_QUEUED and self._queued_bytes + size <= _MOST_QUEUED_BYTES:
            self._queue.append((method, params, size))
            self._queued_bytes += size
            if self._telling is None or self._telling.done():
                self._telling = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        while self._queue:
            method, params, size = self._queue.pop(0)
            try:
                await self._session._request_outbound.notify(method, params)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._queue.clear()
                self._queued_bytes = size
            self._queued_bytes -= size
