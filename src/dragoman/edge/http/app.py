"""The ASGI application: lets requests in, and has the endpoint or a route answer them.

1. Requests come in by two doors: `take` for a POST to the endpoint that came whole, as nearly all do, without any of
   what ASGI costs; and ASGI for everything. Both let in the same requests, `admission.py`, and answer the same.
2. Every request passes the checks of `Host` and `Origin`, and every one but those for health the check of who it is.
3. A page may read every answer to a request of its own that was let in, and a refusal too.
4. The spans of a request are part of the trace that its headers name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from dragoman.clock import Clock
from dragoman.edge.asgi import (
    JSON,
    Application,
    Disconnected,
    Header,
    Post,
    Receive,
    RequestRefused,
    Scope,
    Send,
    WholeHead,
    answer,
    limited,
)
from dragoman.edge.http.admission import Admitted, HttpAdmission
from dragoman.edge.http.eras import Eras
from dragoman.edge.http.expiry import until_expired
from dragoman.edge.http.origins import CorsPost, with_cors
from dragoman.edge.http.routes import Routes
from dragoman.edge.peer import log_refusal
from dragoman.edge.served import Served
from dragoman.errors import InternalError, InvalidRequest, ProtocolError
from dragoman.parts.route import HttpRequest, HttpResponse, Route
from dragoman.protocol.headers import by_name
from dragoman.protocol.jsonrpc import Id
from dragoman.telemetry.log import exception_facts

if TYPE_CHECKING:
    from dragoman.telemetry.metrics import Metrics

_LAST_FORWARDED = 1.0  # Seconds for what another worker answers at the very end.

JoinTrace: TypeAlias = Callable[[list[Header]], Callable[[], None] | None]
"""Makes the spans of a request part of the trace that its headers name; returns what ends that."""


class HttpApp:
    """Serves a runtime over HTTP. Mount it anywhere; give its `lifespan` to whatever it is mounted in."""

    def __init__(
        self,
        runtime: Served,
        admission: HttpAdmission,
        eras: Eras,
        routes: Routes,
        *,
        metrics: Metrics | None = None,
        join_trace: JoinTrace | None = None,
    ) -> None:
        self._runtime = runtime
        self._admission = admission
        self._eras = eras
        self._routes = routes
        self._reader = eras.modern.reader
        self._starting: asyncio.Task[None] | None = None
        self._has_started = False
        self.metrics = metrics
        self._join_trace = join_trace
        self.endpoint = routes.endpoint.path

    @property
    def clock(self) -> Clock:
        return self._runtime.clock

    @property
    def routes(self) -> tuple[Route, ...]:
        """Everything that is answered besides the endpoint."""
        return self._routes.all

    @property
    def pages(self) -> tuple[str, ...]:
        """The addresses of pages for people, from the server's root on, without the owner's secret."""
        return tuple(route.page for route in self.routes if route.page is not None)

    @property
    def local_secret(self) -> str | None:
        """What the owner of the data directory brings as a bearer token; None where that makes nobody the owner."""
        return self._admission.nearness.secret

    @property
    def is_authenticated(self) -> bool:
        """Whether callers have to say who they are."""
        return self._admission.is_authenticated

    def listens_at(self, *, is_near: bool) -> None:
        """Be told, by a server of our own, whether only this machine can reach the address that it listens at.

        Raises `ConfigError` if it needs the secret of the data directory then, and cannot have it.
        """
        self._admission.nearness.listens(is_near=is_near)

    # The doors.

    def take(self, post: Post, head: WholeHead, body: bytes) -> bool:
        """Answer a POST to the endpoint that came whole.

        False: nothing was done, and it has to come in by the other door. That waits for whatever has to be waited for,
        and closes the connection of a client that sends too much.
        """
        if not self._has_started:
            return False
        leave_trace = None if self._join_trace is None else self._join_trace(head.headers)
        try:
            admission = self._admission
            request: Admitted | None = head.known
            if request is None:
                request = head.known = admission.admit(head.headers, head.named)
            headers = request.headers
            caller = admission.known_caller(request)
            if caller is None or request.is_for_other or len(body) > admission.most_bytes:
                return False
            if b"origin" in headers:
                post = CorsPost(post, headers[b"origin"], self.run)
            admission.check_post(headers, body)
            return self._eras.serve(post, request, body, caller)
        except Exception as error:
            post.answer(*self._objection(error))
            return True
        finally:
            if leave_trace is not None:
                leave_trace()

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
            await self.run(self._let_in, scope, receive, send)
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
            await answer(send, *self._objection(error, scope))

    def _objection(self, error: Exception, scope: Scope | None = None) -> tuple[int, bytes, tuple[Header, ...]]:
        """What to answer instead of what was asked for; a route may have words of its own for it."""
        if isinstance(error, RequestRefused):
            if self.metrics is not None:
                self.metrics.refused_request(error.status)
            refused = error
        else:
            facts = {"correlationId": self._reader.correlation_id, **exception_facts(error, InternalError.code)}
            self._runtime.logger.error("request failed", facts)
            refused = RequestRefused(500, InternalError("Internal error"))
        status, headers = refused.status, (JSON, *refused.headers)
        line = self.refuse(status, refused.error, refused.id, refused.meta)
        route = None if scope is None else self._routes.at(_path_in(scope))
        if scope is not None and route is not None and route.word_refusal is not None:
            line = route.word_refusal(status, refused.error.message, by_name(scope["headers"]))
        return status, line, headers

    def refuse(
        self, status: int, error: ProtocolError, id: Id | None = None, meta: Mapping[str, Any] | None = None
    ) -> bytes:
        """Log an error that answers a request outside of any session; returns the body of the answer."""
        refusal = self._reader.refuse(error, id, meta or {})
        log_refusal(self._runtime.logger, refusal, {"status": status})
        return refusal.line

    # What comes in by ASGI.

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._has_started:
            await self.start()
        request = self._admission.admit(scope["headers"], by_name(scope["headers"]))
        if b"origin" in request.headers:  # A page is to be able to read a refusal too.
            routed = partial(self._route, request=request)
            await self.run(routed, scope, receive, with_cors(send, request.headers[b"origin"]))
        else:
            await self._route(scope, receive, send, request)

    def _route(self, scope: Scope, receive: Receive, send: Send, request: Admitted) -> Awaitable[None]:
        """Start the answer. This is no coroutine itself, because each level of coroutines costs time."""
        path = _path_in(scope)
        if path == self.endpoint:
            return self._eras.answer(scope, receive, send, request)
        route = self._routes.find(path, scope["method"])
        if route is None:
            raise RequestRefused(
                404, InvalidRequest(f"Nothing is served here; MCP is at {scope.get('root_path', '')}{self.endpoint}")
            )
        return self._follow(route, path, scope, receive, send, request)

    async def _follow(
        self, route: Route, path: str, scope: Scope, receive: Receive, send: Send, request: Admitted
    ) -> None:
        """Have a route's handler answer, after everything that is checked for it."""
        admission, headers = self._admission, request.headers
        caller = await admission.caller(request) if route.needs_caller else request.unnamed
        admission.require(route.scopes, caller)
        receive = limited(receive, admission.most_bytes if route.most_bytes is None else route.most_bytes)
        asked = HttpRequest(
            path,
            headers,
            caller,
            self.is_authenticated,
            self._routes.endpoint.for_clients,
            scope,
            receive,
            partial(admission.read, headers, receive, caller),
            partial(admission.collect, receive),
            route.scopes,
        )
        answered = await route.handler(asked)
        if isinstance(answered, HttpResponse):
            await answer(send, *answered)
        else:
            await until_expired(answered, caller, self._runtime.clock)(scope, receive, send)

    # Its life.

    async def start(self) -> None:
        """Start what is served; without a lifespan, the first request does."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)

    async def stop(self, timeout: float | None = None) -> int:
        """Refuse new calls, let running ones finish, end streams; how many calls had to be abandoned."""
        began = time.monotonic()
        abandoned = await self._runtime.stop(timeout)
        siblings = self._admission.siblings
        if siblings is not None and timeout is not None:
            await siblings.drained(began + timeout + _LAST_FORWARDED - time.monotonic())
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
        try:
            await self._runtime.start()
        finally:
            self._has_started = True

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


def _path_in(scope: Scope) -> str:
    """The path below the one that the application is mounted at."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(f"{root}/") else path
