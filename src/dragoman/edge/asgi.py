"""The little of ASGI that is needed: reading a bounded body, and answering."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from uuid import uuid4

from dragoman.errors import InternalError, InvalidRequest, ProtocolError
from dragoman.parts.route import BodyCutShort, BodyTooLarge, NoRoomForBody
from dragoman.protocol import jsonrpc
from dragoman.protocol.shape import UNLIMITED, Shape

if TYPE_CHECKING:
    from dragoman.telemetry.metrics import Metrics

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header: TypeAlias = tuple[bytes, bytes]
Headers: TypeAlias = dict[bytes, bytes]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON: Header = (b"content-type", b"application/json")
STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)

MOST_READ_AT_ONCE = 256 * 1024 * 1024
"""Bytes of unfinished bodies that are held, of all clients together."""


_NO_META: Final[Mapping[str, Any]] = {}


class RequestRefused(Exception):
    """The request cannot be served; what to answer instead. `meta` is the `_meta` of the message, as far as known."""

    def __init__(
        self,
        status: int,
        error: ProtocolError,
        headers: Iterable[Header] = (),
        id: jsonrpc.Id | None = None,
        meta: Mapping[str, Any] = _NO_META,
    ) -> None:
        super().__init__(error.message)
        self.status = status
        self.error = error
        self.headers = tuple(headers)
        self.id = id
        self.meta = meta


class TooLarge(RequestRefused, BodyTooLarge):
    """The body is longer than a request may be; what is left of it is not read."""

    def __init__(self, most: int) -> None:
        error = InvalidRequest(f"The body is longer than {most} bytes")
        super().__init__(413, error, ((b"connection", b"close"),))


class NoRoom(RequestRefused, NoRoomForBody):
    """There is no room for the body, as so much is being sent."""

    def __init__(self) -> None:
        headers = ((b"connection", b"close"), (b"retry-after", b"1"))
        super().__init__(503, InternalError("Too much is being sent at once"), headers)


class ServerStopping(RequestRefused):
    """The server takes nothing new; another one, or this one later, may."""

    def __init__(self, id: jsonrpc.Id | None = None, meta: Mapping[str, Any] = _NO_META) -> None:
        super().__init__(503, InternalError("The server is stopping"), ((b"retry-after", b"1"),), id, meta)


class Disconnected(BodyCutShort):
    """The client was gone before it had said everything."""


async def answer(send: Send, status: int, body: bytes = b"", headers: Iterable[Header] = (JSON,)) -> None:
    """A whole response at once."""
    length = () if status == 204 else ((b"content-length", b"%d" % len(body)),)  # RFC 9110, 8.6: 204 has none.
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body})


def unknown_refusal(status: int, error: ProtocolError) -> bytes:
    """The body of a refusal by a server that knows nothing of its application; `HttpApp.refuse` also logs it."""
    return jsonrpc.encode_error(error, None, str(uuid4()))


class Post(Protocol):
    """A request whose body has been read. It is answered once: at once, as a whole, or as an application sees fit."""

    on_gone: Callable[[], object] | None
    """What to do when the client leaves before that; called once."""

    def answer(self, status: int, body: bytes, headers: tuple[Header, ...] = (JSON,)) -> None:
        """Send a whole response."""
        ...

    def go_on(self, app: Application) -> None:
        """Have an application answer. It also has to see for itself whether the client leaves."""
        ...

    def watch(self) -> None:
        """It takes a while: see to it that a client that leaves is noticed."""
        ...


class WholeHead(Protocol):
    """The headers of a request that came whole. Requests on one connection whose heads are the same share it."""

    known: Any
    """Facts that the application derived from them; None before that."""

    @property
    def headers(self) -> list[Header]:
        """As they came, names in lower case."""
        ...

    @property
    def named(self) -> Headers:
        """By name; values of the same name are joined."""
        ...


class HttpApplication(Protocol):
    """The application, as the HTTP server needs it: an ASGI application that also takes whole requests as they are."""

    @property
    def endpoint(self) -> str:
        """The path that MCP is served at."""
        ...

    @property
    def metrics(self) -> Metrics | None:
        """The counters of bytes and refusals."""
        ...

    def take(self, post: Post, head: WholeHead, body: bytes) -> bool:
        """Answer a POST to the endpoint that came whole.

        False: nothing was done, and it has to come in by ASGI.
        """
        ...

    def refuse(self, status: int, error: ProtocolError) -> bytes:
        """Log an error that answers a request before the application has seen it; returns the body of the answer."""
        ...

    async def run(self, app: Application, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the application answer that a post was given to go on with. A defect of it costs one request."""
        ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class PlainApplication:
    """Any ASGI application, as the HTTP server serves it. Implements `HttpApplication`."""

    endpoint = ""
    metrics = None

    def __init__(self, app: Application) -> None:
        self._app = app

    def take(self, post: Post, head: WholeHead, body: bytes) -> bool:
        return False

    def refuse(self, status: int, error: ProtocolError) -> bytes:
        return unknown_refusal(status, error)

    async def run(self, app: Application, scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class AsgiPost:
    """A request from whichever ASGI server there is."""

    on_gone: Callable[[], object] | None = None
    _watcher: asyncio.Task[None] | None = None

    def __init__(self, receive: Receive) -> None:
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._decided: asyncio.Future[Application | None] = self._loop.create_future()

    def answer(self, status: int, body: bytes, headers: tuple[Header, ...] = (JSON,)) -> None:
        self.go_on(lambda scope, receive, send: answer(send, status, body, headers))

    def go_on(self, app: Application) -> None:
        if not self._decided.done():
            self._decided.set_result(app)

    def watch(self) -> None:
        if not self._decided.done():
            self._watcher = self._loop.create_task(self._until_gone())

    async def run(self, scope: Scope, send: Send) -> None:
        """Wait until it is decided what to answer, and answer."""
        try:
            app = await self._decided
        finally:
            if self._watcher is not None:
                self._watcher.cancel()
            if not self._decided.done() or self._decided.cancelled():
                self._leave()
        if app is not None:
            await app(scope, self._receive, send)

    async def _until_gone(self) -> None:
        await until_gone(self._receive)
        self._leave()

    def _leave(self) -> None:
        if not self._decided.done():
            self._decided.set_result(None)
        if self.on_gone is not None:
            on_gone, self.on_gone = self.on_gone, None
            on_gone()


async def until_gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Bodies:
    """Reads bodies, each up to `most_each` bytes, and up to `most_together` of those that come in pieces.

    No named holder has more than half of the latter. Those that `read` returns are within the limits of `shape`, and so
    is what they become when they are decoded.
    """

    def __init__(self, most_each: int, most_together: int, shape: Shape = UNLIMITED) -> None:
        self._most_each = most_each
        self._most_together = max(most_each, most_together)
        self._most_of_one = max(most_each, most_together // 2)
        self._shape = shape
        self.held = 0
        self._held_by: Counter[str] = Counter()

    async def read(self, receive: Receive, holder: str = "") -> bytes:
        """All of a body. Raises what `collect` does, and `RequestRefused` when it consists of too much."""
        body = await self.collect(receive, self._most_each, holder)
        self.check(body)
        return body

    def check(self, body: bytes) -> None:
        """Raise `RequestRefused` for a body that is longer, or consists of more, than a request may."""
        if len(body) > self._most_each:
            raise TooLarge(self._most_each)
        excess = self._shape.excess(body)
        if excess is not None:
            heading = jsonrpc.heading(body)
            error = InvalidRequest(f"Invalid request: the message has {excess}")
            raise RequestRefused(413, error, id=heading.id, meta=heading.correlation)

    async def collect(self, receive: Receive, most: int, holder: str = "") -> bytes:
        """All of a body of at most `most` bytes, whatever it consists of.

        Raises `TooLarge` as soon as it is longer, `Disconnected`, and `NoRoom` when others, or its holder, send so much
        that there is no room for it.
        """
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body: bytes = message.get("body", b"")
        if len(body) > most:
            raise TooLarge(most)
        if not message.get("more_body", False):
            return body
        parts, size = [body], len(body)
        self._hold(size, holder)
        try:
            while message.get("more_body", False):
                if self.held > self._most_together or self._held_by[holder] > self._most_of_one:
                    raise NoRoom
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                part = message.get("body", b"")
                parts.append(part)
                size += len(part)
                self._hold(len(part), holder)
                if size > most:
                    raise TooLarge(most)
            return b"".join(parts)
        finally:
            self._hold(-size, holder)

    def _hold(self, size: int, holder: str) -> None:
        self.held += size
        if holder:
            self._held_by[holder] += size
            if not self._held_by[holder]:
                del self._held_by[holder]


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read already, and then goes on as the real one."""
    given = False

    async def receive_again() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def limited(receive: Receive, most: int) -> Receive:
    """A `receive` that raises `TooLarge` once a body is longer than `most` bytes."""
    left = most

    async def receive_limited() -> MutableMapping[str, Any]:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise TooLarge(most)
        return message

    return receive_limited
