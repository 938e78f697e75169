"""A session of the SDK, as the lane sees it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from mcp.server.connection import Connection as SdkConnection
from mcp.server.streamable_http import GET_STREAM_KEY

from dragoman.access.callers import Caller
from dragoman.calls.call import Call, Withdrawal
from dragoman.edge.asgi import JSON, Receive, Scope, Send, answer
from dragoman.edge.peer import id_in_use, log_refusal
from dragoman.edge.sdk.session_client import listener_of
from dragoman.edge.sdk.transport import ResumableTransport, send_line
from dragoman.errors import InvalidRequest, RequestCancelled
from dragoman.protocol.jsonrpc import Id, encode_error
from dragoman.protocol.session import Event, Request, Session, ToolCall
from dragoman.telemetry.log import Logger

_TOUCH_EVERY = 1.0
"""Seconds, at most, between two notes of a session that it is in use; one for every call would cost more than it."""


class OpenRequest(Protocol):
    """A request of the lane that waits for its answer."""

    def finish(self, line: bytes) -> None:
        """Answer it; the first answer counts."""
        ...


class LaneSession:
    """A session as the lane sees it."""

    def __init__(
        self,
        session_id: str,
        caller: Caller,
        connection: SdkConnection,
        transport: ResumableTransport,
        reader: Session,
        logger: Logger,
        delivering: set[asyncio.Task[None]],
    ) -> None:
        """`delivering` are the answers of all sessions that are on their way to a stream."""
        self.id = session_id
        self.reader = reader
        self.logger = logger
        self.header = (b"mcp-session-id", session_id.encode())
        self.headers = (JSON, self.header)
        """Of an answer."""
        self.caller = caller
        self.connection = connection
        self.transport = transport
        self.listener = listener_of(connection)
        self.calls: dict[Id, tuple[Call, OpenRequest]] = {}
        """What the lane is answering, by the request's id."""
        self.under_way: set[Id] = set()
        """What the SDK is answering, also while nobody listens to the stream of the answer."""
        self._delivering = delivering
        self._touched = 0.0
        assert transport._idle_timeout is not None
        self._idle_timeout = transport._idle_timeout
        self._touch_every = min(_TOUCH_EVERY, self._idle_timeout / 10)

    @property
    def version(self) -> str:
        return self.connection.protocol_version

    @property
    def can_be_asked(self) -> bool:
        """Whether the client said that it answers questions of any kind."""
        can = self.connection.client_capabilities
        return can is None or any(each is not None for each in (can.elicitation, can.sampling, can.roots))

    @property
    def is_answering(self) -> bool:
        """Whether somebody waits at a stream for an answer."""
        return any(name != GET_STREAM_KEY for name in self.transport._request_streams)

    def touch(self, now: float) -> None:
        """Note that the session is in use, which the SDK does not see when the lane answers."""
        if now - self._touched > self._touch_every:
            self._touched = now
            if not self.transport._requests_in_flight:
                self._expire_at(now + self._idle_timeout + self._touch_every)

    def uses(self, request_id: Id, *, in_lane: bool) -> bool:
        """Whether a request with this id is being answered. To the SDK, and only to it, 1 and "1" are the same one."""
        if request_id in self.calls or request_id in self.under_way:
            return True
        if str(request_id) not in self.transport._request_streams:
            return False
        return not in_lane or str(request_id) not in map(str, self.calls)

    async def stream(
        self, request_id: Id, answered: asyncio.Future[bytes], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Go on as an event stream with a call of the lane that takes its time; the client can resume it.

        The answer goes into the session whether or not anybody is listening when it comes.
        """
        transport = self.transport
        if transport.is_terminated:
            refusal = self.reader.refuse(InvalidRequest("The session is over"), request_id)
            log_refusal(self.logger, refusal, {"status": 404})
            await answer(send, 404, refusal.line)
            return
        name = str(request_id)
        if name in transport._request_streams:  # To the SDK, 1 and "1" are one.
            await answer(send, 200, await answered, self.headers)
            return
        priming = await transport._mint_priming_event(name, self.version)
        delivering = asyncio.create_task(self._deliver(answered))
        self._delivering.add(delivering)
        delivering.add_done_callback(self._delivering.discard)
        with self._in_use():
            await transport.serve_stream(name, [] if priming is None else [priming], scope, receive, send)

    def cancel(self, request_id: Id, reason: Withdrawal) -> bool:
        """Withdraw a call of the lane; False: there is none with this id."""
        found = self.calls.pop(request_id, None)
        if found is None:
            return False
        call, exchange = found
        call.withdraw(reason)
        exchange.finish(encode_error(RequestCancelled(), call.request_id, call.correlation_id))
        return True

    def close(self) -> None:
        """The session is over, and with it every call in it."""
        for request_id in tuple(self.calls):
            self.cancel(request_id, "disconnect")

    async def _deliver(self, answered: asyncio.Future[bytes]) -> None:
        await send_line(self.transport._write_stream, await answered)

    def _expire_at(self, time: float) -> None:
        assert self.transport.idle_scope is not None
        self.transport.idle_scope.deadline = time

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the session, as the SDK does during the requests that it serves."""
        transport = self.transport
        transport._requests_in_flight += 1
        self._expire_at(math.inf)
        try:
            yield
        finally:
            transport._requests_in_flight -= 1
            self._touched = 0.0
            self.touch(asyncio.get_running_loop().time())


class SseSession:
    """A session of the deprecated transport: its reader, and the stream that its answers go to."""

    def __init__(self, caller: Caller, reader: Session, logger: Logger, stream: Any) -> None:
        self.caller = caller
        self.reader = reader
        self.logger = logger
        self.under_way: set[Id] = set()
        self._stream = stream

    def read(self, message: bytes) -> Event | None:
        """What a message means. An id in use is refused here: the SDK would forget the request that has it."""
        event = self.reader.read(message)
        if isinstance(event, ToolCall | Request) and event.id in self.under_way:
            return self.reader.refuse(id_in_use(), event.id, event.meta)
        return event

    async def send(self, line: bytes) -> None:
        """Send an answer, in turn with those of the SDK."""
        await send_line(self._stream, line)
