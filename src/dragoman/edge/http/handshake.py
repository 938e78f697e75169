"""Sessions of the handshake era over HTTP.

1. The SDK owns the sessions. The lane answers the calls in them that need no way back to the client.
2. A request whose client leaves goes on, and can be resumed.
3. A stream ends when the token does that opened it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from dragoman.access.callers import Caller
from dragoman.calls.call import Call, Outcome
from dragoman.calls.origin import Origin
from dragoman.edge.asgi import Post, Receive, RequestRefused, Scope, Send, ServerStopping, replayed
from dragoman.edge.connection import Services
from dragoman.edge.http.admission import Admitted, HttpAdmission
from dragoman.edge.http.exchange import SessionCall, Watch
from dragoman.edge.http.expiry import until_expired
from dragoman.edge.http.modern import is_modern
from dragoman.edge.http.sdk_messages import decoded, reduced
from dragoman.edge.peer import id_in_use, log_refusal
from dragoman.edge.served import Served
from dragoman.errors import InvalidRequest, MissingScope, ParseError, ProtocolError
from dragoman.protocol import jsonrpc
from dragoman.protocol.jsonrpc import Answer, encode_error, encode_result
from dragoman.protocol.session import Cancel, Initialized, Refusal, Request, ToolCall

if TYPE_CHECKING:
    from dragoman.edge.sdk.lane_session import LaneSession
    from dragoman.edge.sdk.sessions import SdkSessions

_NO_MESSAGE = frozenset({ParseError.code, InvalidRequest.code})
"""Only what is not a valid message has a status of its own, 400; the answer to a valid one has 200."""


class HandshakeEra:
    """Answers what comes in sessions."""

    def __init__(
        self, runtime: Served, services: Services, sessions: SdkSessions, admission: HttpAdmission, watch: Watch
    ) -> None:
        self._runtime = runtime
        self._catalogue = services.catalogue
        self._sessions = sessions
        self._admission = admission
        self._watch = watch
        # Bound once: these are needed for every call.
        self._make = services.intake.make
        self._submit = services.intake.submit_later
        self._render = services.dialect.render

    def serve(self, post: Post, request: Admitted, body: bytes, caller: Caller) -> bool:
        """Answer a message in a session, now or later; False: it is for the SDK to answer, or of the other era."""
        session_id = request.headers.get(b"mcp-session-id")
        session = None if session_id is None else self._sessions.find(session_id.decode("latin-1"), caller)
        if session is None:
            return False
        event = session.reader.read(body)
        in_lane = type(event) is ToolCall and self._needs_no_way_back(event, session)
        if (type(event) is ToolCall or type(event) is Request) and session.uses(event.id, in_lane=in_lane):
            event, in_lane = session.reader.refuse(id_in_use(), event.id, event.meta), False
        if in_lane:
            assert type(event) is ToolCall
            self._start_call(event, SessionCall(post, event.id, caller, session, self._watch), request)
            return True
        if type(event) is Refusal:
            if is_modern(body):
                return False  # It is told that its headers are not those of its era.
            log_refusal(session.logger, event)
            post.answer(400 if event.code in _NO_MESSAGE else 200, event.line, session.headers)
            return True
        if type(event) is Initialized:
            session.connection.initialized.set()  # The SDK acknowledges it first, and the client goes on then.
        if type(event) is Cancel and session.cancel(event.id, "client"):
            post.answer(202, b"", (session.header,))
            return True
        return False

    async def hand_over(
        self, scope: Scope, receive: Receive, send: Send, request: Admitted, caller: Caller, body: bytes
    ) -> None:
        """Have the SDK answer a message."""
        message = decoded(body)
        if b"mcp-session-id" not in request.headers:
            request_id = None if message.id is msgspec.UNSET else message.id
            meta = jsonrpc.heading(body).correlation
            if isinstance(message, Answer) or message.method != "initialize":
                reason = "Bad request: Mcp-Session-Id is missing, and only initialize opens a session"
                raise RequestRefused(400, InvalidRequest(reason), id=request_id, meta=meta)
            if not self._runtime.is_running:
                raise ServerStopping(request_id, meta)
        await self.hand_over_body(scope, receive, send, caller, reduced(body, message))

    async def hand_over_body(self, scope: Scope, receive: Receive, send: Send, caller: Caller, body: bytes) -> None:
        """Have the SDK answer, for as long as the caller's token is valid.

        The `body` is passed on without waiting. Otherwise another request could take the same id meanwhile.
        """

        def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            return self._sessions.handle(scope, replayed(body, receive), send, caller)

        await until_expired(app, caller, self._runtime.clock)(scope, receive, send)

    def _needs_no_way_back(self, event: ToolCall, session: LaneSession) -> bool:
        tool = self._catalogue.get(event.name)
        if tool is not None and (tool.questions or (tool.wants_context and (tool.speaks or session.can_be_asked))):
            return False
        return "progressToken" not in event.meta

    def _start_call(self, event: ToolCall, exchange: SessionCall, request: Admitted) -> None:
        session = exchange.session
        session.touch(self._watch.loop.time())
        # The caller as it is now: a later token may allow less than the one that the session was opened with.
        origin = Origin(exchange.caller, "http", None, False, session.version, session.id, request.pairs)
        call = self._make(event, origin, partial(self._answer_call, exchange))
        session.calls[event.id] = (call, exchange)
        self._submit(call)

    def _answer_call(self, exchange: SessionCall, call: Call, outcome: Outcome) -> None:
        request_id, error = exchange.request_id, outcome.error
        exchange.session.calls.pop(request_id, None)
        if error is not None and isinstance(error, ProtocolError):
            line = encode_error(error, request_id, call.correlation_id)
        else:
            line = encode_result(request_id, self._render(call, outcome))
        if error is not None and isinstance(error, MissingScope):
            exchange.finish(line, *self._admission.step_up(error, exchange.caller))
        else:
            exchange.finish(line)
