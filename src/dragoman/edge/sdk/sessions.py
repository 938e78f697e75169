"""The SDK's HTTP sessions of the handshake era, and what the lane needs to know of them.

1. The SDK owns the sessions: it opens, routes, times out and ends them. The lane is told which are past their handshake
   and whose they are, so that it can answer calls in them itself.
2. Our own `Session` reads each message before the SDK does. It keeps the state gate and words the protocol errors, as
   it does on stdio; an error that the SDK raises later is worded by it on the way out.
3. A stream that broke is resumed where it broke: who resumes is listening before the past is replayed, so nothing falls
   between the two, and nothing that came both ways is sent twice.
4. Whoever resumes a stream has it from then on, even if an earlier connection still looks alive.

As in `kernel`, the internals touched are those of mcp 2.3.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from uuid import UUID, uuid4

import msgspec

from dragoman.access.callers import Caller
from dragoman.access.quota import Quota
from dragoman.calls.call import Call, Withdrawal
from dragoman.config import Config
from dragoman.edge.http.asgi import JSON, Receive, RequestRefused, Scope, Send, ServerStopping, answer
from dragoman.edge.http.exchange import SessionCall
from dragoman.edge.http.replay import Event, ReplayBuffer, SessionEvents
from dragoman.edge.listing import refuse_cursor
from dragoman.edge.peer import id_in_use, log_refusal
from dragoman.edge.sdk.kernel import CALLER, TRANSPORT, SdkError, SdkKernel, listener_of, protocol_error_of
from dragoman.errors import InternalError, InvalidRequest, RequestCancelled
from dragoman.ids import Ids
from dragoman.protocol.jsonrpc import Id, encode_error, error_data
from dragoman.protocol.session import Event as Read
from dragoman.protocol.session import Move, Request, Session, ToolCall, correlation_id_in, handshake_reader
from dragoman.telemetry.log import Logger, exception_facts

if TYPE_CHECKING:
    from mcp.server.connection import Connection as SdkConnection

_READER = "dragoman.reader"
"""Where the scope of a request has the `Session` that reads its messages."""
_UNDER_WAY = "dragoman.under_way"
"""Where the scope of a message has the ids of the requests of its session that the SDK has under way."""
_TOUCH_EVERY = 1.0
"""Seconds, at most, between two notes of a session that it is in use; one for every call would cost more than it."""

_LAST_WORDS = 0.5
"""Seconds that the last answers have to reach those who wait for them."""


class LaneSession:
    """A session as the lane sees it."""

    def __init__(
        self,
        session_id: str,
        caller: Caller,
        connection: SdkConnection,
        transport: Any,
        reader: Session,
        logger: Logger,
    ) -> None:
        self.id = session_id
        self.reader = reader
        self.logger = logger
        self.header = (b"mcp-session-id", session_id.encode())
        self.caller = caller
        self.connection = connection
        self.transport = transport
        self.listener = listener_of(connection)
        self.calls: dict[Id, tuple[Call, SessionCall]] = {}
        """What the lane is answering, by the request's id."""
        self.under_way: set[Id] = set()
        """What the SDK is answering, also while nobody listens to the stream of the answer."""
        self._touched = 0.0
        self._touch_every = min(_TOUCH_EVERY, transport._idle_timeout / 10)

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
        from mcp.server.streamable_http import GET_STREAM_KEY

        return any(name != GET_STREAM_KEY for name in self.transport._request_streams)

    def touch(self, now: float) -> None:
        """Note that the session is in use, which the SDK does not see when the lane answers."""
        if now - self._touched > self._touch_every:
            self._touched = now
            transport = self.transport
            if not transport._requests_in_flight:
                transport.idle_scope.deadline = now + transport._idle_timeout + self._touch_every

    def uses(self, request_id: Id, *, in_lane: bool) -> bool:
        """Whether a request with this id is being answered. To the SDK, and only to it, 1 and "1" are the same one."""
        if request_id in self.calls or request_id in self.under_way:
            return True
        if str(request_id) not in self.transport._request_streams:
            return False
        return not in_lane or str(request_id) not in map(str, self.calls)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the session, as the SDK does during the requests that it serves."""
        transport = self.transport
        transport._requests_in_flight += 1
        transport.idle_scope.deadline = math.inf
        try:
            yield
        finally:
            transport._requests_in_flight -= 1
            self._touched = 0.0
            self.touch(asyncio.get_running_loop().time())

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


class SseSession:
    """A session of the deprecated transport: its reader, and the stream that its answers go to."""

    def __init__(self, caller: Caller, reader: Session, logger: Logger, stream: Any) -> None:
        self.caller = caller
        self.reader = reader
        self.logger = logger
        self.under_way: set[Id] = set()
        self._stream = stream

    def read(self, message: bytes) -> Read | None:
        """What a message means. An id in use is refused here: the SDK would forget the request that has it."""
        event = self.reader.read(message)
        if isinstance(event, ToolCall | Request) and event.id in self.under_way:
            return self.reader.refuse(id_in_use(), event.id, event.meta)
        return event

    async def send(self, line: bytes) -> None:
        """Send an answer, in turn with those of the SDK."""
        await _send(self._stream, line)


class SdkSessions:
    """Serves what the lane does not of the handshake era over HTTP, on the kernel's server."""

    def __init__(
        self,
        kernel: SdkKernel,
        config: Config,
        ids: Ids,
        logger: Logger,
        *,
        is_authenticated: bool,
        sse: bool = False,
        prefix: str = "",
    ) -> None:
        self._kernel = kernel
        self._ids = ids
        self._sse_sessions: dict[UUID, SseSession] = {}
        self._prefix = prefix
        self._config = config
        self._logger = logger
        self._is_authenticated = is_authenticated
        self._sse = sse
        self._index: dict[str, LaneSession] = {}
        self._by_sse: set[SdkConnection] = set()
        """Those of the deprecated transport, which the lane has no part in."""
        self._buffer = ReplayBuffer(config.http.max_replay_bytes)
        self._running: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._stopping = asyncio.Event()
        self._delivering: set[asyncio.Task[None]] = set()
        self._requests = 0
        self._are_ending = False
        self._manager: Any = None
        self._sse_transport: Any = None

    @property
    def count(self) -> int:
        """How many sessions are past their handshake."""
        return len(self._index) + len(self._by_sse)

    def find(self, session_id: str, caller: Caller) -> LaneSession | None:
        """A session of this caller; none once they end."""
        session = self._index.get(session_id)
        if session is None or session.caller != caller or session.transport.is_terminated or self._are_ending:
            return None
        return session

    def find_sse(self, scope: Scope, caller: Caller) -> SseSession | None:
        """The session of this caller that a request to the deprecated transport names."""
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        named = query.get("session_id", [""])[-1]  # As the SDK: of several, the last.
        try:
            session = self._sse_sessions.get(UUID(hex=named))
        except ValueError:
            return None
        return session if session is not None and session.caller == caller and not self._are_ending else None

    async def load(self) -> None:
        """Import the SDK and start its session manager, once."""
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run(self._ready))
        await asyncio.shield(self._ready)

    async def stop(self) -> None:
        """End every session, its streams included, once what there is to say on them is said."""
        self._are_ending = True
        if self._ready is not None and not self._ready.done():  # Requests do not wait for an import to be refused.
            self._ready.set_exception(ServerStopping())
            self._ready.exception()  # Whoever waited may have left.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                while self._is_speaking:  # noqa: ASYNC110 -- the SDK tells nobody.
                    await asyncio.sleep(0.01)
        self._stopping.set()
        for session in tuple(self._index.values()):
            session.close()
        if self._sse_transport is not None:
            for writer in tuple(self._sse_transport._read_stream_writers.values()):
                await writer.aclose()
        if self._running is not None:
            await asyncio.wait((self._running,), timeout=2.0)
        for task in self._delivering:
            task.cancel()

    async def handle(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve a request at the endpoint of streamable HTTP."""
        await self._enter_transport(scope, caller, "http")
        named = dict(scope["headers"]).get(b"mcp-session-id", b"").decode("latin-1")
        session = self.find(named, caller)
        scope[_READER] = reader = self._new_reader() if session is None else session.reader
        scope[_UNDER_WAY] = set() if session is None else session.under_way
        await self._manager.handle_request(scope, receive, self._worded(send, reader))

    async def handle_sse(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve the stream that opens a session of the deprecated transport, for as long as it lasts."""
        from mcp.server.runner import serve_loop

        await self._enter_transport(scope, caller, "sse")
        manager, holder = self._manager, (caller.issuer, caller.name)
        manager.take_place(holder)
        manager.by_sse += 1
        try:
            async with self._sse_transport.connect_sse(scope, receive, send) as (read, write):
                session_id = next(reversed(self._sse_transport._read_stream_writers))  # Nothing else has run since.
                reader = self._new_reader()
                self._sse_sessions[session_id] = SseSession(caller, reader, self._logger_for(reader), write)
                try:
                    await serve_loop(self._kernel.server, read, write, lifespan_state=manager._lifespan_state)
                finally:
                    del self._sse_sessions[session_id]
        finally:
            manager.by_sse -= 1
            manager.per_caller.give_back(holder)

    async def handle_sse_message(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Take a message in a session of the deprecated transport."""
        await self._enter_transport(scope, caller, "sse")
        session = self.find_sse(scope, caller)
        scope[_READER] = reader = self._new_reader() if session is None else session.reader
        scope[_UNDER_WAY] = set() if session is None else session.under_way
        await self._sse_transport.handle_post_message(scope, receive, self._worded(send, reader))

    async def stream(
        self,
        session: LaneSession,
        request_id: Id,
        answered: asyncio.Future[bytes],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Go on as an event stream with a call of the lane that takes its time; the client can resume it.

        The answer goes into the session whether or not anybody is listening when it comes.
        """
        transport = session.transport
        if transport.is_terminated:
            refusal = session.reader.refuse(InvalidRequest("The session is over"), request_id)
            log_refusal(session.logger, refusal, {"status": 404})
            await answer(send, 404, refusal.line)
            return
        name = str(request_id)
        if name in transport._request_streams:  # To the SDK, 1 and "1" are one.
            await answer(send, 200, await answered, (JSON, session.header))
            return
        priming = await transport._mint_priming_event(name, session.version)
        delivering = asyncio.create_task(self._deliver(transport, answered))
        self._delivering.add(delivering)
        delivering.add_done_callback(self._delivering.discard)
        with session.in_use():
            await transport.serve_stream(name, [] if priming is None else [priming], scope, receive, send)

    def list_changed(self, kind: str) -> None:
        """Tell every session to list the tools, resources or prompts again."""
        listeners = [session.listener for session in self._index.values()]
        for listener in (*listeners, *map(listener_of, self._by_sse)):
            if listener.is_listening:
                listener.notify(f"notifications/{kind}/list_changed")

    @property
    def _is_speaking(self) -> bool:
        """Whether a request is being answered, or an answer on its way."""
        sessions = self._index.values()
        return bool(self._requests or self._delivering) or any(each.calls or each.is_answering for each in sessions)

    async def _enter_transport(self, scope: Scope, caller: Caller, transport: str) -> None:
        """Say whose request it is, to the handlers and to the SDK, which lets nobody else into a session."""
        if self._are_ending:
            raise ServerStopping
        await self.load()
        if self._are_ending:  # Since: loading takes a while.
            raise ServerStopping

        from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
        from mcp.server.auth.provider import AccessToken

        scope[CALLER], scope[TRANSPORT] = caller, transport
        claims = {"iss": caller.issuer} if caller.issuer is not None else None
        token = AccessToken(token="", client_id=caller.client_id or "", scopes=[], subject=caller.name, claims=claims)
        scope["user"] = AuthenticatedUser(token)

    async def _run(self, ready: asyncio.Future[None]) -> None:
        try:
            await self._kernel.load()
            server = self._kernel.server
            guard: Any = self._guard
            server.middleware.append(guard)
            http = self._config.http
            self._manager = _manager_class()(
                server,
                self._buffer,
                self._prefix,
                self._per_caller(),
                session_idle_timeout=http.session_idle_ms / 1000,
                max_sessions=http.max_sessions,
                max_request_body_size=self._config.limits.max_request_bytes,
            )
            if self._sse:
                from mcp.server.sse import SseServerTransport

                most = self._config.limits.max_request_bytes
                self._sse_transport = SseServerTransport("/messages/", max_request_body_size=most)
            async with self._manager.run():
                if not ready.done():
                    ready.set_result(None)
                await self._stopping.wait()
        except Exception as error:
            self._logger.error("HTTP sessions cannot be served", exception_facts(error, InternalError.code))
            if not ready.done():
                self._ready = None  # The next request may have better luck.
                ready.set_exception(error)

    def _per_caller(self) -> Quota:
        """How many sessions one caller may have; without authentication all clients are one caller."""
        http = self._config.http
        if not self._is_authenticated:
            return Quota(http.max_sessions)
        return Quota(http.max_sessions_per_caller or max(1, http.max_sessions // 2))

    async def _guard(self, context: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        """Around every message of every session: the index, the words of errors, and no exception text for clients."""
        connection = context.session._connection
        if context.request is None or CALLER not in context.request.scope:
            return await call_next(context)  # Not one of a session: the lane has seen to it.
        try:
            if context.request_id is None:
                if context.method == "initialized":  # As the Foundation spells it.
                    connection.initialized.set()
                return await call_next(context)
            if context.method == "initialize":
                result = await call_next(context)
                self._enter(connection, context.request.scope)
                return result
            if context.method == "tools/list":
                refuse_cursor((context.params or {}).get("cursor"))  # Before the SDK, which has other words for it.
            under_way: set[Id] = context.request.scope[_UNDER_WAY]
            if context.request_id in under_way:  # Two came at once over SSE.
                raise id_in_use()
            under_way.add(context.request_id)
            self._requests += 1
            try:
                return await call_next(context)
            finally:
                self._requests -= 1
                under_way.discard(context.request_id)
        except Exception as error:
            opened = self._manager._server_instances.get(connection.session_id)
            if context.method == "initialize" and opened is not None and connection.session_id not in self._index:
                opened.was_refused = True
            raise self._refusal(context, error) from None

    def _refusal(self, context: Any, error: Exception) -> Exception:
        """The error for the SDK to answer with, in our words; it is logged."""
        from mcp.shared.exceptions import MCPError

        reader: Session = context.request.scope[_READER]
        meta = (context.params or {}).get("_meta") or {}
        worded = protocol_error_of(error, context.method, modern=False)
        logger = self._logger_for(reader)
        if worded is None:
            worded = InternalError("Internal error")
            correlation_id = correlation_id_in(meta) or reader.correlation_id
            facts = {"method": context.method, "correlationId": correlation_id}
            logger.error("message failed", {**facts, **exception_facts(error, InternalError.code)})
        refusal = reader.refuse(worded, context.request_id, meta)
        log_refusal(logger, refusal)
        return MCPError(refusal.code, refusal.message, error_data(worded, refusal.correlation_id))

    def _worded(self, send: Send, reader: Session) -> Send:
        """A `send` for the SDK: an answer that is an HTTP error, of whatever kind, becomes a JSON-RPC error of ours."""
        refused: Any = None

        async def send_worded(message: Any) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] >= 400:
                refused = message
            elif refused is None:
                await send(message)
            elif not message.get("more_body", False):  # The SDK sends such an answer in one piece.
                status = refused["status"]
                refusal = reader.refuse(_said_in(message.get("body", b"")), None)
                log_refusal(self._logger_for(reader), refusal, {"status": status})
                kept = [pair for pair in refused["headers"] if pair[0] not in (b"content-type", b"content-length")]
                await answer(send, status, refusal.line, (JSON, *kept))

        return send_worded

    def _new_reader(self) -> Session:
        return handshake_reader(self._kernel.identity, self._ids.connection_correlation_id())

    def _logger_for(self, reader: Session) -> Logger:
        return self._logger.child({"connectionCorrelationId": reader.correlation_id})

    def _enter(self, connection: SdkConnection, scope: Scope) -> None:
        session_id = connection.session_id
        if session_id is None:
            self._by_sse.add(connection)
            connection.exit_stack.callback(self._by_sse.discard, connection)
            return
        if session_id not in self._manager._server_instances:
            return
        reader: Session = scope[_READER]
        reader.move(Move.INITIALIZE)
        transport, logger = self._manager._server_instances[session_id], self._logger_for(reader)
        transport.reader = reader
        session = LaneSession(session_id, scope[CALLER], connection, transport, reader, logger)
        self._index[session_id] = session
        connection.exit_stack.callback(self._leave, session_id)

    def _leave(self, session_id: str) -> None:
        session = self._index.pop(session_id, None)
        if session is not None:
            session.close()

    async def _deliver(self, transport: Any, answered: asyncio.Future[bytes]) -> None:
        await _send(transport._write_stream, await answered)


async def _send(stream: Any, line: bytes) -> None:
    """Have the SDK send an answer of ours."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    try:
        await stream.send(SessionMessage(message))
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass  # The session is over: there is nobody left who could ask for it.


def _said_in(body: bytes) -> SdkError:
    """The error in an answer of the SDK, which is JSON-RPC or plain text."""
    try:
        error = msgspec.json.decode(body)["error"]
        said = error["message"].partition("\n")[0]  # What may follow repeats parts of the message.
        return SdkError(error["code"], said, error.get("data"))
    except (msgspec.DecodeError, LookupError, TypeError):
        return SdkError(InvalidRequest.code, body.decode(errors="replace"), None)


def _manager_class() -> Any:
    """The SDK's session manager with streams that can be resumed; made here, as the SDK is imported late."""
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
    from mcp_types import JSONRPCError, JSONRPCResponse
    from sse_starlette import EventSourceResponse

    def is_answer(message: Any) -> bool:
        # An error without an id answers nothing: it is for whoever listens.
        return isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None

    class Events(EventStore):
        """One session's streams, in the buffer that all sessions share."""

        def __init__(self, buffer: ReplayBuffer) -> None:
            self.streams = SessionEvents(buffer)

        async def store_event(self, stream_id: str, message: Any) -> str:
            if message is None:
                return self.streams.store(stream_id)
            text = message.model_dump_json(by_alias=True, exclude_unset=True)
            return self.streams.store(stream_id, text, is_last=is_answer(message))

        async def replay_events_after(self, last_event_id: str, send_callback: Any) -> None:
            raise NotImplementedError("the transport below replays by itself")

    class Transport(StreamableHTTPServerTransport):
        """A transport whose streams are resumed without a gap."""

        _was_listened_to = False
        was_refused = False
        """Whether the `initialize` that opened the session was answered with an error."""
        reader: Session

        async def handle_request(self, scope: Scope, receive: Receive, send: Send) -> None:
            await super().handle_request(scope, receive, send)
            if self.was_refused:  # Nobody can use it, and it would keep its place until it is idle for long enough.
                await self.terminate()

        async def serve_stream(
            self, name: str, first: Iterable[Any], scope: Scope, receive: Receive, send: Send
        ) -> None:
            """Give a stream to a connection: what is to be sent first, then what comes."""
            writer, reader = anyio.create_memory_object_stream[dict[str, Any]](0)
            live, listening = anyio.create_memory_object_stream[EventMessage](REQUEST_STREAM_BUFFER_SIZE)
            self._sse_stream_writers[name] = writer
            self._request_streams[name] = (live, listening)
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
                        if is_answer(message.message):
                            break
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                pass  # Somebody else has the stream now, or it ended with its session.
            finally:
                held = self._request_streams.get(name)
                if held is not None and held[1] is listening:
                    self._sse_stream_writers.pop(name, None)
                    await self._clean_up_memory_streams(name)

        async def _terminate_unanswered_request(self, request_id: Id) -> None:
            refusal = self.reader.refuse(RequestCancelled(), request_id)
            await _send(self._write_stream, refusal.line)

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
            transport = Transport(
                mcp_session_id=session_id, event_store=Events(self._buffer), idle_timeout=self.session_idle_timeout
            )
            if requestor is not None:
                self._session_owners[session_id] = requestor
            self._server_instances[session_id] = transport
            return transport

    return Manager


def _too_many(reason: str, limit: int) -> RequestRefused:
    facts = {"reason": "too_many_sessions", "limit": limit, "retryable": True}
    return RequestRefused(503, InternalError(reason, facts), ((b"retry-after", b"1"),))


def _holder(owner: Any) -> tuple[str | None, str | None]:
    """Whose a session is, through whatever client."""
    return (None, None) if owner is None else (owner["issuer"], owner["subject"])


def _as_sent(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [{"event": "message", "id": event.id, "data": event.text} for event in events if event.text]


async def _each(events: Iterable[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    for event in events:
        yield event
