"""The endpoint: which era a request is of, and which process answers it.

1. A request that names 2026-07-28, in a header or in its `_meta`, is of the modern era, and everything else of the
   handshake era.
2. A request of a session that another process has is forwarded to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.access.callers import Caller
from dragoman.edge.asgi import AsgiPost, Post, Receive, RequestRefused, Scope, Send, ServerStopping, answer, replayed
from dragoman.edge.connection import Services
from dragoman.edge.http.admission import HANDSHAKE, Admitted, HttpAdmission
from dragoman.edge.http.exchange import Watch
from dragoman.edge.http.handshake import HandshakeEra
from dragoman.edge.http.modern import ModernEra, is_modern
from dragoman.edge.http.origins import preflight_headers
from dragoman.edge.http.siblings import LOCAL_ONLY, OwnerLost, Siblings
from dragoman.edge.served import Served
from dragoman.errors import InvalidRequest
from dragoman.protocol import headers as rules

if TYPE_CHECKING:
    from dragoman.edge.sdk.sessions import SdkSessions


class Eras:
    """Answers requests to the endpoint."""

    def __init__(self, runtime: Served, services: Services, sessions: SdkSessions, admission: HttpAdmission) -> None:
        watch = Watch(runtime.clock)
        self.modern = ModernEra(runtime, services, admission, watch)
        self.handshake = HandshakeEra(runtime, services, sessions, admission, watch)
        self._runtime = runtime
        self._admission = admission

    def serve(self, post: Post, request: Admitted, body: bytes, caller: Caller) -> bool:
        """Answer a POST, now or later; False: it is for the SDK to answer."""
        if request.could_be_handshake:
            if request.takes_json and request.takes_streams and self.handshake.serve(post, request, body, caller):
                return True
            if not is_modern(body):
                return False
        if not request.takes_json:
            raise RequestRefused(406, InvalidRequest("Accept must include application/json"))
        self.modern.serve(post, request, body, caller)
        return True

    async def answer(self, scope: Scope, receive: Receive, send: Send, request: Admitted) -> None:
        """Answer a request that came in by ASGI."""
        siblings = self._admission.siblings
        if siblings is not None and request.is_for_other and LOCAL_ONLY not in scope:
            await self._forward(siblings, scope, receive, send, request)
        elif scope["method"] == "POST":
            caller, body = await self._admission.read_post(request, receive)
            post = AsgiPost(receive)
            if self.serve(post, request, body, caller):
                await post.run(scope, send)
            else:
                await self.handshake.hand_over(scope, receive, send, request, caller, body)
        elif scope["method"] == "OPTIONS":
            await answer(send, 204, b"", preflight_headers(request.headers, b"GET, POST, DELETE"))
        else:
            await self._stream_or_end(scope, receive, send, request)

    async def _stream_or_end(self, scope: Scope, receive: Receive, send: Send, request: Admitted) -> None:
        """GET opens a session's stream, and DELETE ends a session."""
        caller = await self._admission.caller(request)
        method, headers = scope["method"], request.headers
        if method not in ("GET", "DELETE") or rules.METHOD in headers:
            allowed = (b"allow", b"POST" if rules.METHOD in headers else b"GET, POST, DELETE")
            raise RequestRefused(405, InvalidRequest(f"{method} is not allowed here"), (allowed,))
        if headers.get(rules.VERSION, b"2025-03-26") not in HANDSHAKE:
            reason = "2026-07-28 has no streams to open and no sessions to end"
            raise RequestRefused(405, InvalidRequest(reason), ((b"allow", b"POST"),))
        if b"mcp-session-id" not in headers:
            raise RequestRefused(400, InvalidRequest("Bad request: Mcp-Session-Id is missing"))
        # Nobody needs the body, but the SDK would read it, and refuse it in text.
        body = await self._admission.read(headers, receive, caller)
        await self.handshake.hand_over_body(scope, receive, send, caller, body)

    async def _forward(self, siblings: Siblings, scope: Scope, receive: Receive, send: Send, request: Admitted) -> None:
        """Have another process answer, whose session it is; if that is gone, it is a session that nobody has.

        The caller is authenticated here before anything is read, and again by the owner.
        """
        owner, body, again = None, b"", receive
        if scope["method"] == "POST":
            _, body = await self._admission.read_post(request, receive)
            owner, again = siblings.owner_of(request.headers, body), replayed(body, receive)
        elif scope["method"] in ("GET", "DELETE"):
            await self._admission.caller(request)
            owner = siblings.owner_of(request.headers, body)
        try:
            if owner is not None and await siblings.forward(owner, scope, receive, send, body):
                return
        except OwnerLost:
            self._runtime.logger.warn("a worker ended in the middle of an answer", {"owner": owner})
            return  # Without an end, so that the client sees that there is none.
        if owner is not None and not self._runtime.is_running:
            raise ServerStopping
        scope[LOCAL_ONLY] = True
        await self.answer(scope, again, send, request)
