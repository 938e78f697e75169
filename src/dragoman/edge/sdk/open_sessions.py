"""The HTTP sessions of the handshake era that are open, on the SDK's server.

1. The SDK owns the sessions: it opens, routes, times out and ends them. The lane is told which are past their handshake
   and whose they are, so that it can answer calls in them itself.
2. Our own `Session` reads each message before the SDK does. It keeps the state gate and words the protocol errors, as
   it does on stdio; an error that the SDK raises later is worded by it on the way out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.connection import Connection as SdkConnection
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_loop
from mcp.server.sse import SseServerTransport
from mcp.shared.exceptions import MCPError

from dragoman.access.callers import Caller
from dragoman.access.quota import Quota
from dragoman.edge.asgi import JSON, Receive, Scope, Send, answer
from dragoman.edge.listing import refuse_cursor
from dragoman.edge.peer import id_in_use, log_refusal
from dragoman.edge.sdk.errors import error_in, protocol_error_of
from dragoman.edge.sdk.lane_session import LaneSession, SseSession
from dragoman.edge.sdk.replay import ReplayBuffer
from dragoman.edge.sdk.session_client import CALLER, TRANSPORT, listener_of
from dragoman.edge.sdk.transport import Manager
from dragoman.edge.settings import HttpConfig
from dragoman.errors import InternalError
from dragoman.protocol.jsonrpc import Id, error_data
from dragoman.protocol.session import Move, Session, correlation_id_in
from dragoman.telemetry.log import Logger, exception_facts

_READER = "dragoman.reader"
"""Where the scope of a request has the `Session` that reads its messages."""
_UNDER_WAY = "dragoman.under_way"
"""Where the scope of a message has the ids of the requests of its session that the SDK has under way."""
_LAST_WORDS = 0.5
"""Seconds that the last answers have to reach those who wait for them."""


class OpenSessions:
    """Serves what the lane does not of the handshake era over HTTP."""

    def __init__(
        self,
        server: Server[Any],
        http: HttpConfig,
        most: int,
        new_reader: Callable[[], Session],
        logger: Logger,
        per_caller: Quota,
        prefix: str,
    ) -> None:
        self._server = server
        self._new_reader = new_reader
        self._logger = logger
        self._index: dict[str, LaneSession] = {}
        self._sse_sessions: dict[UUID, SseSession] = {}
        self._by_sse: set[SdkConnection] = set()
        """Those of the deprecated transport, which the lane has no part in."""
        self._delivering: set[asyncio.Task[None]] = set()
        self._requests = 0
        self._buffer = ReplayBuffer(http.max_replay_bytes)
        self._manager = Manager(
            server,
            self._buffer,
            prefix,
            per_caller,
            session_idle_timeout=http.session_idle_ms / 1000,
            max_sessions=http.max_sessions,
            max_request_body_size=most,
        )
        self._sse_transport = SseServerTransport("/messages/", max_request_body_size=most)
        guard: Any = self._guard
        server.middleware.append(guard)

    @property
    def count(self) -> int:
        """How many sessions are past their handshake."""
        return len(self._index) + len(self._by_sse)

    def find(self, session_id: str, caller: Caller) -> LaneSession | None:
        """A session of this caller."""
        session = self._index.get(session_id)
        if session is None or session.caller != caller or session.transport.is_terminated:
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
        return session if session is not None and session.caller == caller else None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sessions can be opened in this context, and are over after it."""
        try:
            async with self._manager.run():
                yield
        finally:
            for task in self._delivering:
                task.cancel()

    async def end(self) -> None:
        """End every session, once what there is to say on its streams is said."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                while self._is_speaking:  # noqa: ASYNC110 -- the SDK tells nobody.
                    await asyncio.sleep(0.01)
        for session in tuple(self._index.values()):
            session.close()
        for writer in tuple(self._sse_transport._read_stream_writers.values()):
            await writer.aclose()

    async def handle(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve a request at the endpoint of streamable HTTP."""
        named = dict(scope["headers"]).get(b"mcp-session-id", b"").decode("latin-1")
        reader = self._enter_transport(scope, caller, "http", self.find(named, caller))
        await self._manager.handle_request(scope, receive, self._worded(send, reader))

    async def handle_sse(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve the stream that opens a session of the deprecated transport, for as long as it lasts."""
        reader = self._enter_transport(scope, caller, "sse", None)
        manager, holder = self._manager, (caller.issuer, caller.name)
        manager.take_place(holder)
        manager.by_sse += 1
        try:
            async with self._sse_transport.connect_sse(scope, receive, send) as (read, write):
                session_id = next(reversed(self._sse_transport._read_stream_writers))  # Nothing else has run since.
                self._sse_sessions[session_id] = SseSession(caller, reader, self._logger_for(reader), write)
                try:
                    await serve_loop(self._server, read, write, lifespan_state=manager._lifespan_state)
                finally:
                    del self._sse_sessions[session_id]
        finally:
            manager.by_sse -= 1
            manager.per_caller.give_back(holder)

    async def handle_sse_message(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Take a message in a session of the deprecated transport."""
        reader = self._enter_transport(scope, caller, "sse", self.find_sse(scope, caller))
        await self._sse_transport.handle_post_message(scope, receive, self._worded(send, reader))

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

    def _enter_transport(
        self, scope: Scope, caller: Caller, transport: str, session: LaneSession | SseSession | None
    ) -> Session:
        """Say whose request it is, to the handlers and to the SDK, which lets nobody else into a session."""
        claims = {"iss": caller.issuer} if caller.issuer is not None else None
        token = AccessToken(token="", client_id=caller.client_id or "", scopes=[], subject=caller.name, claims=claims)
        scope["user"] = AuthenticatedUser(token)
        scope[CALLER], scope[TRANSPORT] = caller, transport
        scope[_UNDER_WAY] = set() if session is None else session.under_way
        reader = self._new_reader() if session is None else session.reader
        scope[_READER] = reader
        return reader

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
                refusal = reader.refuse(error_in(message.get("body", b"")), None)
                log_refusal(self._logger_for(reader), refusal, {"status": status})
                kept = [pair for pair in refused["headers"] if pair[0] not in (b"content-type", b"content-length")]
                await answer(send, status, refusal.line, (JSON, *kept))

        return send_worded

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
        session = LaneSession(session_id, scope[CALLER], connection, transport, reader, logger, self._delivering)
        self._index[session_id] = session
        connection.exit_stack.callback(self._leave, session_id)

    def _leave(self, session_id: str) -> None:
        session = self._index.pop(session_id, None)
        if session is not None:
            session.close()
