"""The deprecated transport: a stream of answers, and messages that are posted beside it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dragoman.edge.asgi import Application, Receive, RequestRefused, Scope, Send, answer, replayed
from dragoman.edge.http.routes import SSE_PATH
from dragoman.edge.http.sdk_messages import decoded, reduced
from dragoman.edge.peer import log_refusal
from dragoman.errors import InvalidRequest
from dragoman.parts.route import HttpRequest, HttpResponse, Route
from dragoman.protocol.session import Refusal

if TYPE_CHECKING:
    from dragoman.edge.sdk.sessions import SdkSessions


def sse_routes(sessions: SdkSessions) -> tuple[Route, ...]:
    """The stream, and the address that its client posts to."""
    return (
        Route(SSE_PATH, partial(_open, sessions), methods=None, is_open=True),
        Route("/messages/", partial(_take, sessions), methods=None, is_open=True),
    )


async def _open(sessions: SdkSessions, request: HttpRequest) -> Application:
    if request.method != "GET":  # HEAD would open a stream, too.
        raise RequestRefused(405, InvalidRequest("Open the stream with GET"), ((b"allow", b"GET"),))
    return partial(sessions.handle_sse, caller=request.caller)


async def _take(sessions: SdkSessions, request: HttpRequest) -> HttpResponse | Application:
    hand_over = partial(sessions.handle_sse_message, caller=request.caller)
    if request.method != "POST":
        return hand_over
    body = await request.body()
    session = sessions.find_sse(request.scope, request.caller)
    event = None if session is None else session.read(body)
    if session is None or type(event) is not Refusal:
        message = reduced(body, decoded(body))
        return lambda scope, receive, send: hand_over(scope, replayed(message, receive), send)
    log_refusal(session.logger, event)
    if event.id is None:
        return HttpResponse(400, event.line)
    tell = session.send

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 202, headers=())
        await tell(event.line)  # The client waits for it at the stream.

    return refuse
