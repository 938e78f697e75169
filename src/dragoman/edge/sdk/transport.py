"""Sessions of streamable HTTP whose streams can be resumed, and the places that there are for them.

1. A stream that broke is resumed where it broke: who resumes is listening before the past is replayed, so nothing falls
   between the two, and nothing that came both ways is sent twice.
2. Whoever resumes a stream has it from then on, even if an earlier connection still looks alive.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import anyio
from anyio.lowlevel import checkpoint
from mcp.server.streamable_http import (
    GET_STREAM_KEY,
    LAST_EVENT_ID_HEADER,
    REQUEST_STREAM_BUFFER_SIZE,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
    check_accept_headers,
)
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter
from sse_starlette import EventSourceResponse

from dragoman.access.quota import Quota
from dragoman.edge.asgi import Receive, RequestRefused, Scope, Send
from dragoman.edge.sdk.replay import ReplayBuffer, ReplayEvent, SessionEvents
from dragoman.errors import InternalError, RequestCancelled
from dragoman.protocol.session import Session


async def send_line(stream: Any, line: bytes) -> None:
    """Have the SDK send an answer of ours."""
    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    try:
        await stream.send(SessionMessage(message))
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # The session is over: there is nobody left who could ask for it.


class _LastingStream:
    """The SDK's way to send the messages of a stream. It is no error that nobody receives them: they can be replayed.

    On an error the SDK would forget the stream by its name, even if a client has resumed it meanwhile.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.close, self.aclose = stream.close, stream.aclose

    async def send(self, message: EventMessage) -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._stream.send(message)


class Events(EventStore):
    """One session's streams, in the buffer that all sessions share."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.streams = SessionEvents(buffer)

    async def store_event(self, stream_id: str, message: Any) -> str:
        if message is None:
            return self.streams.store(stream_id)
        text = message.model_dump_json(by_alias=True, exclude_unset=True)
        return self.streams.store(stream_id, text, is_last=_is_answer(message))

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> None:
        raise NotImplementedError("the transport below replays by itself")


class ResumableTransport(StreamableHTTPServerTransport):
    """A transport whose streams are resumed without a gap."""

    _was_listened_to = False
    was_refused = False
    """Whether the `initialize` that opened the session was answered with an error."""
    reader: Session

    async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().handle_request(scope, receive, send)
        if self.was_refused:  # Nobody can use it, and it would keep its place until it is idle for long enough.
            await self.terminate()

    async def serve_stream(self, name: str, first: Iterable[Any], scope: Scope, receive: Receive, send: Send) -> None:
        """Give a stream to a connection: what is to be sent first, then what comes."""
        writer, reader = anyio.create_memory_object_stream[dict[str, Any]](0)
        live, listening = anyio.create_memory_object_stream[EventMessage](REQUEST_STREAM_BUFFER_SIZE)
        self._sse_stream_writers[name] = writer
        self._request_streams[name] = (_LastingStream(live), listening)  # type: ignore[assignment]
        sending = partial(self._forward, name, writer, listening, first)
        response = EventSourceResponse(reader, headers=self._stream_headers(), data_sender_callable=sending)
        try:
            await response(scope, receive, send)
        finally:
            await reader.aclose()

    async def _forward(self, name: Any, writer: Any, listening: Any, first: Iterable[Any]) -> None:
        try:
            async with writer, listening:
                for event in first:
                    await writer.send(event)
                async for message in listening:
                    await writer.send(self._create_event_data(message))
                    if _is_answer(message.message):
                        break
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass  # Somebody else has the stream now, or it ended with its session.
        finally:
            held = self._request_streams.get(name)
            if held is not None and held[1] is listening:
                self._sse_stream_writers.pop(name, None)
                await self._clean_up_memory_streams(name)

    def _create_session_message(self, message: Any, request: Any, name: Any, version: str) -> SessionMessage:
        sending, receiving = self._request_streams[name]
        self._request_streams[name] = (_LastingStream(sending), receiving)  # type: ignore[assignment]
        made = super()._create_session_message(message, request, name, version)
        # As the SDK does it, with the request's own correlation id.
        made.metadata.on_request_unanswered = partial(self._answer_cancelled, message)  # type: ignore[union-attr]
        return made

    async def _answer_cancelled(self, request: Any) -> None:
        meta = (request.params or {}).get("_meta") or {}
        refusal = self.reader.refuse(RequestCancelled(), request.id, meta)
        await send_line(self._write_stream, refusal.line)

    async def _run_sse_writer(
        self, request_id: Any, sse_stream_writer: Any, request_stream_reader: Any, priming_event: Any
    ) -> None:
        first = [] if priming_event is None else [priming_event]
        await self._forward(request_id, sse_stream_writer, request_stream_reader, first)

    async def _handle_get_request(self, request: Any, send: Send) -> None:
        """As the SDK, but what was said before anybody listened is not lost, and the first event can be missed."""
        _, takes_streams = check_accept_headers(request)
        is_resumed = request.headers.get(LAST_EVENT_ID_HEADER)
        if not takes_streams or is_resumed or GET_STREAM_KEY in self._request_streams:
            await super()._handle_get_request(request, send)
            return
        first = [] if self._was_listened_to else _as_sent(self._events.streams.held(GET_STREAM_KEY))
        self._was_listened_to = True
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER, "")
        priming = await self._mint_priming_event(GET_STREAM_KEY, version)
        if priming is not None:
            first.append(priming)
        await self.serve_stream(GET_STREAM_KEY, first, request.scope, request.receive, send)

    async def _replay_events(self, last_event_id: str, request: Any, send: Send) -> None:
        found = self._events.streams.find(last_event_id)
        if found is None:
            reason = "Last-Event-ID is not one of this session, or too old"
            response = self._create_error_response(reason, HTTPStatus.BAD_REQUEST)
            await response(request.scope, request.receive, send)
            return
        stream, number = found
        while not stream.has_ended and stream.name in self._request_streams:
            self.close_sse_stream(stream.name)  # Whoever had it is gone, or was given up by the client.
            await checkpoint()  # Whoever was about to send there notices, and lets go of the name.
        first = _as_sent(event for event in stream.events.values() if event.number > number)
        if stream.has_ended:
            past = EventSourceResponse(_each(first), headers=self._stream_headers())
            await past(request.scope, request.receive, send)
        else:
            await self.serve_stream(stream.name, first, request.scope, request.receive, send)

    @property
    def _events(self) -> Events:
        assert isinstance(self._event_store, Events)
        return self._event_store

    def _stream_headers(self) -> dict[str, str]:
        return {"cache-control": "no-cache, no-transform", "mcp-session-id": self.mcp_session_id or ""}

    async def terminate(self) -> None:
        await super().terminate()
        self._events.streams.close()


class Manager(StreamableHTTPSessionManager):
    """Gives each session streams of its own, so that ids of different sessions cannot meet."""

    _server_instances: dict[str, ResumableTransport]  # type: ignore[assignment]  # `_admit_session` makes no others.

    def __init__(self, app: Any, buffer: ReplayBuffer, prefix: str, per_caller: Quota, **options: Any) -> None:
        super().__init__(app, **options)
        self._buffer = buffer
        self._prefix = prefix
        self.per_caller = per_caller
        self.by_sse = 0
        """How many sessions of the deprecated transport are open."""

    def take_place(self, holder: tuple[str | None, str | None]) -> None:
        """Take one of the places for sessions, and of those for a caller; raises `RequestRefused`."""
        assert self.max_sessions is not None
        if len(self._server_instances) + self.by_sse >= self.max_sessions:
            raise _too_many("Too many open sessions", self.max_sessions)
        if not self.per_caller.take(holder):
            raise _too_many("Too many open sessions of this caller", self.per_caller.most)

    async def _discard_session(self, session_id: str, transport: Any) -> None:
        if session_id in self._server_instances:  # It may be discarded more than once.
            self.per_caller.give_back(_holder(self._session_owners.get(session_id)))
        await super()._discard_session(session_id, transport)

    def _admit_session(self, requestor: Any) -> Any:
        self.take_place(_holder(requestor))
        session_id = self._prefix + uuid4().hex
        transport = ResumableTransport(
            mcp_session_id=session_id, event_store=Events(self._buffer), idle_timeout=self.session_idle_timeout
        )
        if requestor is not None:
            self._session_owners[session_id] = requestor
        self._server_instances[session_id] = transport
        return transport


def _is_answer(message: Any) -> bool:
    # An error without an id answers nothing: it is for whoever listens.
    return isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None


def _too_many(reason: str, limit: int) -> RequestRefused:
    facts = {"reason": "too_many_sessions", "limit": limit, "retryable": True}
    return RequestRefused(503, InternalError(reason, facts), ((b"retry-after", b"1"),))


def _holder(owner: Any) -> tuple[str | None, str | None]:
    """Whose a session is, through whatever client."""
    return (None, None) if owner is None else (owner["issuer"], owner["subject"])


def _as_sent(events: Iterable[ReplayEvent]) -> list[dict[str, Any]]:
    return [{"event": "message", "id": event.id, "data": event.text} for event in events if event.text]


async def _each(events: Iterable[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    for event in events:
        yield event
