"""The ASGI application: who may come in, where they go, and the lane that answers most of what they ask.

1. Every request passes the checks of `Host` and `Origin`, and every one but those for health the check of who it is.
2. A request that names 2026-07-28, in a header or in its `_meta`, is a single exchange: the lane answers
   `server/discover`, `tools/list` and `tools/call`, and hands the rest to the kernel.
3. Everything else is of the handshake era. There the SDK owns the sessions, and the lane answers the calls in them that
   need no way back to the client.
4. A dropped request of the modern era is cancelled; a dropped one in a session goes on, and can be resumed.
5. A stream ends when the token does that opened it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from dragoman.access.callers import ANONYMOUS, Caller
from dragoman.calls.call import Call, Outcome
from dragoman.calls.origin import Origin
from dragoman.edge.asgi import (
    JSON,
    MOST_READ_AT_ONCE,
    Application,
    AsgiPost,
    Bodies,
    Disconnected,
    Header,
    Headers,
    Post,
    Receive,
    RequestRefused,
    Scope,
    Send,
    ServerStopping,
    TooLarge,
    answer,
    limited,
    replayed,
)
from dragoman.edge.connection import Services
from dragoman.edge.http.access import HttpAccess
from dragoman.edge.http.exchange import Exchange, SessionCall, Watch
from dragoman.edge.http.expiry import until_expired
from dragoman.edge.http.origins import preflight_headers, with_cors
from dragoman.edge.http.routes import Endpoint, Routes
from dragoman.edge.http.sdk_messages import NO_BODY, decoded, reduced
from dragoman.edge.http.siblings import LOCAL_ONLY, OwnerLost, Siblings
from dragoman.edge.http.sse import sse_routes
from dragoman.edge.http.status import Status
from dragoman.edge.peer import id_in_use, log_refusal
from dragoman.edge.served import Served
from dragoman.errors import (
    HeaderMismatch,
    InternalError,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    MissingCapability,
    MissingScope,
    ParseError,
    ProtocolError,
    UnsupportedVersion,
)
from dragoman.parts.route import HttpRequest, HttpResponse, Route
from dragoman.protocol import headers as rules
from dragoman.protocol import jsonrpc
from dragoman.protocol.jsonrpc import Answer, Id, encode_error, encode_result
from dragoman.protocol.results import InputRequired
from dragoman.protocol.session import (
    Cancel,
    Initialized,
    Refusal,
    Request,
    ToolCall,
    correlation_id_in,
    modern_reader,
)
from dragoman.protocol.versions import HANDSHAKE_VERSIONS, MODERN_VERSIONS, VERSION_KEY
from dragoman.replies.encoding import meta_of
from dragoman.telemetry.log import Logger, exception_facts

if TYPE_CHECKING:
    from dragoman.edge.sdk.lane_session import LaneSession
    from dragoman.edge.sdk.sessions import SdkSessions
    from dragoman.telemetry.metrics import Metrics

STATUS_OF = {
    error.code: status
    for status, errors in {
        400: (ParseError, InvalidRequest, InvalidParams, HeaderMismatch, MissingCapability, UnsupportedVersion),
        404: (MethodNotFound,),
    }.items()
    for error in errors
}
"""The status of a modern answer that is an error; 200 for any other."""
_NO_MESSAGE = frozenset({ParseError.code, InvalidRequest.code})
"""In a session only what is not a valid message has a status of its own, 400; the answer to a valid one has 200."""

_HANDSHAKE = frozenset(version.encode() for version in HANDSHAKE_VERSIONS)
_MOST_REMEMBERED = 256
_LONGEST_REMEMBERED = 300
_LAST_FORWARDED = 1.0  # Seconds for what another worker answers at the very end.


class HttpApp:
    """Serves a runtime over HTTP. Mount it anywhere; give its `lifespan` to whatever it is mounted in."""

    def __init__(
        self,
        runtime: Served,
        services: Services,
        sessions: SdkSessions,
        access: HttpAccess,
        endpoint: Endpoint,
        *,
        routes: Iterable[Route] = (),
        siblings: Siblings | None = None,
        metrics: Metrics | None = None,
        join_trace: Callable[[list[Header]], Callable[[], None] | None] | None = None,
    ) -> None:
        """Raises `ConfigError` where two of the routes have the same path.

        `join_trace` makes the spans of a request part of the trace that its headers name; it returns what ends that.
        """
        self._runtime = runtime
        self._services = services
        self._catalogue = services.catalogue
        self._sessions = sessions
        self._logger: Logger = services.logger
        self._access = access
        self._known_caller = access.known_caller
        self._siblings = siblings
        self._modern = modern_reader(services.identity, services.ids.connection_correlation_id())
        self._accepts: dict[bytes | None, tuple[bool, bool]] = {}
        self._annotated: tuple[int, dict[str, tuple[rules.ParameterHeader, ...]]] = (-1, {})
        self._most = services.max_message_bytes
        self._most_at_once = min(self._most, services.shape.sure_bytes)
        self._read = Bodies(self._most, MOST_READ_AT_ONCE, services.shape).read
        self._watch: Watch
        self._starting: asyncio.Task[None] | None = None
        self._make = services.intake.make
        self._submit = services.intake.submit
        self._render = services.dialect.render
        self.metrics = metrics
        self._join_trace = join_trace
        self._status = Status(runtime, services, siblings)
        self._endpoint = endpoint
        self._path = endpoint.path
        sse = sse_routes(sessions) if endpoint.has_sse else ()
        self._routes = Routes(endpoint, (*self._status.routes(), *sse, *routes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the life of the whole application."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        leave_trace = None if self._join_trace is None else self._join_trace(scope["headers"])
        try:
            await self.run(self._admit, scope, receive, send)
        finally:
            if leave_trace is not None:
                leave_trace()

    async def run(self, app: Application, scope: Scope, receive: Receive, send: Send) -> None:
        """Have a part of this answer. The boundary: a defect of ours costs one request."""
        try:
            await app(scope, receive, send)
        except Disconnected:
            pass
        except Exception as error:
            await answer(send, *self._objection(error))

    def take(self, post: Post, pairs: list[Header], body: bytes) -> bool:
        """Answer a POST to the endpoint that came whole, as nearly all do, without any of what ASGI costs.

        False: nothing was done, and it has to come in by the other door, where everything is looked at with more care.
        """
        headers = dict(pairs)
        if (
            len(headers) != len(pairs)
            or headers.get(b"content-type") != b"application/json"
            or b"transfer-encoding" in headers
            or len(body) > self._most_at_once
            or self._join_trace is not None
            or self._starting is None
            or not self._starting.done()
            or (self._siblings is not None and self._siblings.is_for_other(headers))
        ):
            return False
        caller = self._known_caller(headers)
        if caller is None:
            return False
        try:
            return self._serve(post, pairs, headers, body, caller)
        except Exception as error:
            post.answer(*self._objection(error))
            return True

    def _objection(self, error: Exception) -> tuple[int, bytes, tuple[Header, ...]]:
        """What to answer instead of what was asked for."""
        if isinstance(error, RequestRefused):
            if self.metrics is not None:
                self.metrics.refused_request(error.status)
            line = self.refuse(error.status, error.error, error.id, error.meta)
            return error.status, line, (JSON, *error.headers)
        facts = {"correlationId": self._modern.correlation_id, **exception_facts(error, InternalError.code)}
        self._logger.error("request failed", facts)
        return 500, self.refuse(500, InternalError("Internal error")), (JSON,)

    def refuse(
        self, status: int, error: ProtocolError, id: Id | None = None, meta: Mapping[str, Any] | None = None
    ) -> bytes:
        """Log an error that answers a request outside of any session; returns the body of the answer."""
        refusal = self._modern.refuse(error, id, meta or {})
        log_refusal(self._logger, refusal, {"status": status})
        return refusal.line

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._starting is None or not self._starting.done():
            await self.start()
        headers = self._access.admit(scope["headers"])
        if b"origin" in headers:  # A page is to be able to read a refusal too.
            routed = partial(self._route, headers=headers)
            await self.run(routed, scope, receive, with_cors(send, headers[b"origin"]))
        else:
            await self._route(scope, receive, send, headers)

    @property
    def endpoint(self) -> str:
        """The path that MCP is served at."""
        return self._path

    @property
    def pages(self) -> tuple[str, ...]:
        """The addresses of pages for people, from the server's root on."""
        return tuple(route.page for route in self._routes.all if route.page is not None)

    @property
    def is_authenticated(self) -> bool:
        """Whether callers have to say who they are."""
        return self._access.is_authenticated

    async def start(self) -> None:
        """Start what is served; without a lifespan, the first request does."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)

    async def stop(self, timeout: float | None = None) -> int:
        """Refuse new calls, let running ones finish, end streams; how many calls had to be abandoned."""
        began = time.monotonic()
        abandoned = await self._runtime.stop(timeout)
        if self._siblings is not None and timeout is not None:
            await self._siblings.drained(began + timeout + _LAST_FORWARDED - time.monotonic())
        return abandoned

    @asynccontextmanager
    async def lifespan(self, _: Any = None) -> AsyncIterator[None]:
        """For the application that this one is mounted in."""
        await self.start()
        try:
            yield
        finally:
            await self.stop()

    async def _start(self) -> None:
        self._watch = Watch(self._runtime.clock)
        self._status.began = time.monotonic()
        await self._runtime.start()

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    def _route(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> Awaitable[None]:
        """What will answer the request. Not a coroutine: each level of them costs, and the way is the same for all."""
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root and path.startswith(f"{root}/"):
            path = path[len(root) :]
        if path == self._path:
            siblings = self._siblings
            if siblings is not None and LOCAL_ONLY not in scope and siblings.is_for_other(headers):
                return self._forward(siblings, scope, receive, send, headers)
            if scope["method"] == "POST":
                return self._post(scope, receive, send, headers)
            return self._mcp(scope, receive, send, headers)
        route = self._routes.find(path, scope["method"])
        if route is None:
            raise RequestRefused(404, InvalidRequest(f"Nothing is served here; MCP is at {root}{self._path}"))
        return self._follow(route, path, scope, receive, send, headers)

    async def _follow(
        self, route: Route, path: str, scope: Scope, receive: Receive, send: Send, headers: Headers
    ) -> None:
        """Have a route's handler answer, after everything that is checked for it."""
        caller = await self._access.caller(headers) if route.needs_caller else ANONYMOUS
        if route.scope is not None:
            self._access.require(route.scope, caller)
        receive = limited(receive, self._most)
        body = partial(self._body, headers, receive)
        endpoint = self._endpoint.for_clients
        answered = await route.handler(
            HttpRequest(path, headers, caller, self.is_authenticated, endpoint, scope, receive, body)
        )
        if isinstance(answered, HttpResponse):
            await answer(send, *answered)
        else:
            await until_expired(answered, caller, self._runtime.clock)(scope, receive, send)

    async def _forward(self, siblings: Siblings, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        """Have another worker answer, whose session it is; if that is gone, it is a session that nobody has.

        The caller is authenticated here before anything is read, and again by the owner.
        """
        owner, body, again = None, b"", receive
        if scope["method"] == "POST":
            _, body = await self._read_post(receive, headers)
            owner, again = siblings.owner_of(headers, body), replayed(body, receive)
        elif scope["method"] in ("GET", "DELETE"):
            await self._access.caller(headers)
            owner = siblings.owner_of(headers, body)
        try:
            if owner is not None and await siblings.forward(owner, scope, receive, send, body):
                return
        except OwnerLost:
            self._logger.warn("a worker ended in the middle of an answer", {"owner": owner})
            return  # Without an end, so that the client sees that there is none.
        if owner is not None and not self._runtime.is_running:
            raise ServerStopping
        scope[LOCAL_ONLY] = True
        await self._route(scope, again, send, headers)

    # The endpoint.

    async def _mcp(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        method = scope["method"]
        if method == "OPTIONS":
            await answer(send, 204, b"", preflight_headers(headers, b"GET, POST, DELETE"))
            return
        caller = await self._access.caller(headers)
        if method not in ("GET", "DELETE") or rules.METHOD in headers:
            allowed = (b"allow", b"POST" if rules.METHOD in headers else b"GET, POST, DELETE")
            raise RequestRefused(405, InvalidRequest(f"{method} is not allowed here"), (allowed,))
        if headers.get(rules.VERSION, b"2025-03-26") not in _HANDSHAKE:
            allowed = (b"allow", b"POST")
            raise RequestRefused(
                405, InvalidRequest("2026-07-28 has no streams to open and no sessions to end"), (allowed,)
            )
        if b"mcp-session-id" not in headers:
            raise RequestRefused(400, InvalidRequest("Bad request: Mcp-Session-Id is missing"))
        body = await self._body(headers, receive)  # Nobody needs it, but the SDK would read it, and refuse it in text.
        await self._hand_over_body(scope, receive, send, caller, body)

    async def _hand_over_body(self, scope: Scope, receive: Receive, send: Send, caller: Caller, body: bytes) -> None:
        """Have the SDK answer, for as long as the caller's token is valid.

        The `body` is passed on without waiting. Otherwise another request could take the same id meanwhile.
        """

        def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            return self._sessions.handle(scope, replayed(body, receive), send, caller)

        await until_expired(app, caller, self._runtime.clock)(scope, receive, send)

    async def _post(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        caller, body = await self._read_post(receive, headers)
        post = AsgiPost(self._watch.loop, receive)
        if self._serve(post, scope["headers"], headers, body, caller):
            await post.run(scope, send)
        else:
            await self._hand_to_session(scope, receive, send, headers, caller, body)

    async def _read_post(self, receive: Receive, headers: Headers) -> tuple[Caller, bytes]:
        """The caller and the body of a request. Nothing is read before the caller and the headers are accepted."""
        caller = self._known_caller(headers) or await self._access.caller(headers)
        content_type = headers.get(b"content-type", b"")
        if content_type != b"application/json" and not _is_json(content_type):
            raise RequestRefused(415, InvalidRequest("Content-Type must be application/json"))
        return caller, await self._body(headers, receive)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        length = headers.get(b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 18 or int(length) > self._most):
            raise TooLarge(self._most)
        return await self._read(receive)

    def _serve(self, post: Post, pairs: list[Header], headers: Headers, body: bytes, caller: Caller) -> bool:
        """Answer, now or later; False: it is for the SDK to answer."""
        accept = headers.get(b"accept")
        takes_json, takes_stream = self._accepts.get(accept) or self._accepted(accept)
        version = headers.get(rules.VERSION)
        if version in _HANDSHAKE or (version is None and rules.METHOD not in headers and rules.NAME not in headers):
            session_id = headers.get(b"mcp-session-id")
            if session_id is not None and takes_json and takes_stream:
                session = self._sessions.find(session_id.decode("latin-1"), caller)
                if session is not None and self._serve_session(post, session, pairs, body, caller):
                    return True
            if not _is_modern(body):
                return False
        if not takes_json:
            raise RequestRefused(406, InvalidRequest("Accept must include application/json"))
        self._serve_modern(post, pairs, headers, body, caller, takes_stream)
        return True

    def _accepted(self, accept: bytes | None) -> tuple[bool, bool]:
        kinds = {kind.split(b";")[0].strip().lower() for kind in (accept or b"*/*").split(b",")}
        takes_json = bool(kinds & {b"*/*", b"application/*", b"application/json"})
        takes_stream = bool(kinds & {b"*/*", b"text/*", b"text/event-stream"})
        if len(self._accepts) < _MOST_REMEMBERED and len(accept or b"") < _LONGEST_REMEMBERED:
            self._accepts[accept] = (takes_json, takes_stream)
        return takes_json, takes_stream

    # The modern era.

    def _serve_modern(
        self, post: Post, pairs: list[Header], headers: Headers, body: bytes, caller: Caller, takes_stream: bool
    ) -> None:
        if not body or body.isspace():
            raise RequestRefused(400, ParseError(NO_BODY))
        event = self._modern.read(body)
        if event is None or type(event) is Cancel:
            self._check_version(headers)
            post.answer(202, b"", ())  # Nothing to cancel by: in this era a client cancels by leaving.
            return
        if type(event) is Answer:
            raise RequestRefused(400, InvalidRequest("Invalid request: nothing was asked that this could answer"))
        try:
            if isinstance(event, ToolCall | Request):
                self._check_headers(event, pairs, headers)
            else:
                assert isinstance(event, Refusal)
                event = self._first_objection(event, pairs, headers, body)
        except HeaderMismatch as error:
            event = self._modern.refuse(error, getattr(event, "id", None), getattr(event, "meta", {}))
        if isinstance(event, Refusal):
            log_refusal(self._logger, event)
            post.answer(STATUS_OF.get(event.code, 200), event.line)
            return
        if not takes_stream and isinstance(event, Request) and event.method == "subscriptions/listen":
            raise RequestRefused(406, InvalidRequest("Accept must include text/event-stream: the answer is a stream"))
        exchange = Exchange(post, caller, self._watch, streams=takes_stream)
        exchange.headers = pairs
        if isinstance(event, ToolCall):
            self._start_call(event, exchange)
        else:
            self._start_request(event, exchange)

    def _check_version(self, headers: Headers) -> None:
        version = headers.get(rules.VERSION, b"").decode("latin-1")
        if version and version not in MODERN_VERSIONS:
            supported = {"supported": list(MODERN_VERSIONS), "requested": version}
            raise RequestRefused(400, UnsupportedVersion("Unsupported protocol version", supported))

    def _check_headers(self, event: ToolCall | Request, pairs: list[Header], headers: Headers) -> None:
        if isinstance(event, ToolCall):
            rules.check_routing(headers, pairs, event.meta[VERSION_KEY], "tools/call", event.name)
            annotated = self._annotations().get(event.name)
            if annotated is not None:
                rules.check_parameters(annotated, event.arguments, headers, pairs)
        else:
            key = rules.NAMED_BY.get(event.method)
            name = (event.params or {}).get(key) if key is not None else None
            rules.check_routing(headers, pairs, event.meta[VERSION_KEY], event.method, name)

    def _first_objection(self, refusal: Refusal, pairs: list[Header], headers: Headers, body: bytes) -> Refusal:
        """A request whose headers and body disagree is told so before it is told what else is wrong with it."""
        if refusal.code in (UnsupportedVersion.code, MethodNotFound.code):
            heading = jsonrpc.heading(body)
            method, meta = heading.method, heading.meta
            assert method is not None
            try:
                if VERSION_KEY in meta:
                    rules.check_routing(headers, pairs, meta[VERSION_KEY], method, None)
            except HeaderMismatch as error:
                return self._modern.refuse(error, heading.id, meta)
            if method == "initialize" and meta.get(VERSION_KEY) in MODERN_VERSIONS:
                # Nothing was opened in this era that the handshake would come too late for: there is just none.
                return self._modern.refuse(MethodNotFound("Method not found: initialize"), heading.id, meta)
        return refusal

    def _annotations(self) -> dict[str, tuple[rules.ParameterHeader, ...]]:
        version, annotated = self._annotated
        if version != self._catalogue.version:
            version = self._catalogue.version
            found = {
                tool.definition.name: rules.parameter_headers(tool.definition.input_schema) for tool in self._catalogue
            }
            annotated = {name: wanted for name, wanted in found.items() if wanted}
            self._annotated = (version, annotated)
        return annotated

    def _start_call(self, event: ToolCall, exchange: Exchange) -> None:
        def reply(call: Call, outcome: Outcome) -> None:
            error = outcome.error
            if error is not None and isinstance(error, ProtocolError):
                line = encode_error(error, event.id, call.correlation_id)
                exchange.finish(line, STATUS_OF.get(error.code, 200))
            elif type(outcome.value) is InputRequired:
                exchange.finish(self._modern.input_required(event.id, outcome.value, meta_of(call)))
            else:
                body = self._modern.tool_result(event.id, self._render(call, outcome))
                if error is not None and isinstance(error, MissingScope):
                    exchange.finish(body, *self._access.step_up(error, exchange.caller))
                else:
                    exchange.finish(body)

        call = self._make(event, exchange.origin_for(event.meta, modern=True), reply)
        exchange.on_gone = lambda: call.withdraw("disconnect")
        self._submit(call)

    def _start_request(self, event: Request, exchange: Exchange) -> None:
        listing = self._services.listing
        try:
            if event.method == "tools/list":
                tools = listing.encoded_tools(event.params, modern=True, caller=exchange.caller)
                exchange.finish(encode_result(event.id, Raw(tools)))
            elif event.method == "server/discover":
                exchange.finish(self._modern.result(event.id, listing.discovery(), modern=True))
            elif not self._runtime.is_running:
                stopping = ServerStopping(event.id, event.meta)
                line = self.refuse(stopping.status, stopping.error, stopping.id, stopping.meta)
                exchange.finish(line, stopping.status, stopping.headers)
            else:
                serving = asyncio.create_task(self._hand_over(event, exchange))
                exchange.on_gone = serving.cancel
        except ProtocolError as error:
            self._refuse(error, event, exchange)

    async def _hand_over(self, event: Request, exchange: Exchange) -> None:
        try:
            result = await self._services.kernel.handle(exchange, event)
            exchange.finish(self._modern.result(event.id, result, modern=False))
        except ProtocolError as error:
            self._refuse(error, event, exchange)
        except Exception as error:
            correlation_id = correlation_id_in(event.meta) or self._modern.correlation_id
            facts = {"method": event.method, "correlationId": correlation_id}
            self._logger.error("message failed", {**facts, **exception_facts(error, InternalError.code)})
            self._refuse(InternalError("Internal error"), event, exchange)

    def _refuse(self, error: ProtocolError, event: Request, exchange: Exchange) -> None:
        refusal = self._modern.refuse(error, event.id, event.meta)
        log_refusal(self._logger, refusal)
        exchange.finish(refusal.line, STATUS_OF.get(error.code, 200))

    # The handshake era.

    def _needs_no_way_back(self, event: ToolCall, session: LaneSession) -> bool:
        tool = self._catalogue.get(event.name)
        if tool is not None and (tool.questions or (tool.wants_context and (tool.speaks or session.can_be_asked))):
            return False
        return "progressToken" not in event.meta

    def _serve_session(
        self, post: Post, session: LaneSession, pairs: list[Header], body: bytes, caller: Caller
    ) -> bool:
        event = session.reader.read(body)
        in_lane = type(event) is ToolCall and self._needs_no_way_back(event, session)
        if isinstance(event, ToolCall | Request) and session.uses(event.id, in_lane=in_lane):
            event, in_lane = session.reader.refuse(id_in_use(), event.id, event.meta), False
        if type(event) is Refusal:
            if _is_modern(body):
                return False  # It is told that its headers are not those of its era.
            log_refusal(session.logger, event)
            post.answer(400 if event.code in _NO_MESSAGE else 200, event.line, (JSON, session.header))
            return True
        if type(event) is Initialized:
            session.connection.initialized.set()  # The SDK acknowledges it first, and the client goes on then.
        if in_lane:
            assert isinstance(event, ToolCall)
            self._call_in_session(event, session, caller, post, pairs)
            return True
        if type(event) is Cancel and session.cancel(event.id, "client"):
            post.answer(202, b"", (session.header,))
            return True
        return False

    def _call_in_session(
        self, event: ToolCall, session: LaneSession, caller: Caller, post: Post, pairs: list[Header]
    ) -> None:
        exchange = SessionCall(post, event.id, caller, session, self._watch)

        def reply(call: Call, outcome: Outcome) -> None:
            session.calls.pop(event.id, None)
            error = outcome.error
            if error is not None and isinstance(error, ProtocolError):
                line = encode_error(error, event.id, call.correlation_id)
            else:
                line = encode_result(event.id, self._render(call, outcome))
            if error is not None and isinstance(error, MissingScope):
                exchange.finish(line, *self._access.step_up(error, caller))
            else:
                exchange.finish(line)

        session.touch(self._watch.loop.time())
        # The caller as it is now: a later token may allow less than the one that the session was opened with.
        call = self._make(event, Origin(caller, "http", None, False, session.version, session.id, pairs), reply)
        session.calls[event.id] = (call, exchange)
        self._submit(call)

    async def _hand_to_session(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers, caller: Caller, body: bytes
    ) -> None:
        message = decoded(body)
        if b"mcp-session-id" not in headers:
            request_id = None if message.id is msgspec.UNSET else message.id
            meta = jsonrpc.heading(body).correlation
            if isinstance(message, Answer) or message.method != "initialize":
                reason = "Bad request: Mcp-Session-Id is missing, and only initialize opens a session"
                raise RequestRefused(400, InvalidRequest(reason), id=request_id, meta=meta)
            if not self._runtime.is_running:
                raise ServerStopping(request_id, meta)
        await self._hand_over_body(scope, receive, send, caller, reduced(body, message))


def _is_json(content_type: bytes) -> bool:
    return content_type.split(b";")[0].strip().lower() == b"application/json"


def _is_modern(body: bytes) -> bool:
    """Whether a body's `_meta` names a protocol version, as every request of the modern era does."""
    return VERSION_KEY.encode() in body and VERSION_KEY in jsonrpc.heading(body).meta
