"""An address that a part answers over HTTP.

1. The application checks `Host`, `Origin`, the method, the caller and its scope before it calls a route's handler, and
   bounds the body that the handler reads.
2. A route names the scope of the tool that does the same, or says that it is open. One that authenticates its callers
   itself checks the scope itself: the request has it.
3. A handler returns a whole response, or an ASGI application for a stream, which ends when the caller's token does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from dragoman.access.callers import Caller


class BodyNotRead(Exception):
    """The body of a request could not be read. A handler that lets it through has the request refused for it."""


class BodyTooLarge(BodyNotRead):
    """It is longer than it may be; what is left of it is not read."""


class NoRoomForBody(BodyNotRead):
    """Others send so much at this moment that there is no room for it."""


class BodyCutShort(BodyNotRead):
    """The client was gone before it had said everything."""


class HttpResponse(NamedTuple):
    """A whole response."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)


@dataclass(frozen=True)
class HttpRequest:
    """A request to a route, let in and authenticated."""

    path: str
    """Below the path that the application is mounted at."""
    headers: dict[bytes, bytes]
    """By name in lower case; values of a repeated header are joined by commas."""
    caller: Caller
    """`LOCAL` or `ANONYMOUS` where nobody is authenticated. `ANONYMOUS` for a route that needs no caller, elsewhere."""
    is_authenticated: bool
    """Whether the server authenticates its callers."""
    endpoint: str
    """The path that clients of MCP connect to."""
    scope: MutableMapping[str, Any]
    receive: Callable[[], Awaitable[MutableMapping[str, Any]]]
    """ASGI's own. A body that is longer than a request may be is refused for the handler."""
    body: Callable[[], Awaitable[bytes]]
    """Reads the whole body. One beyond the limits of any request is refused for the handler."""
    collect: Callable[[int, str], Awaitable[bytes]]
    """The same for a body of at most so many bytes, whatever it consists of; takes whose it is, too, so that nobody has
    all of the room for unfinished ones. Raises `BodyNotRead`."""
    scopes: tuple[str, ...] = ()
    """Those of which the route's callers have to have one. They were checked, unless the route needs no caller."""

    @property
    def method(self) -> str:
        return str(self.scope["method"])


Stream: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""
RouteHandler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse | Stream]]


WordRefusal: TypeAlias = Callable[[int, str, Mapping[bytes, bytes]], bytes]
"""Makes the body of a refusal from its status, its reason, and the headers of the request."""


@dataclass(frozen=True)
class Route:
    """A path, and the handler that answers requests to it."""

    path: str
    """Such as `/figures`, or `/figures/*` for every path below `/figures/`."""
    handler: RouteHandler
    methods: tuple[str, ...] | None = ("GET",)
    """HEAD is allowed where GET is, unless `takes_head` is not set. None leaves the check to the handler."""
    needs_caller: bool = True
    """Whether requests have to be authenticated, if the server authenticates at all."""
    scope: str | tuple[str, ...] = ()
    """The scope that the caller has to have, or several of which it has to have one."""
    is_open: bool = False
    """Whether callers need no scope: nothing is protected by one, or the handler checks that of each thing it shows."""
    most_bytes: int | None = None
    """The most that a body may have; None: as much as any request."""
    takes_head: bool = True
    """Whether HEAD is allowed where GET is."""
    word_refusal: WordRefusal | None = None
    """How requests are refused that never reach the handler; None: as requests of MCP are."""
    page: str | None = None
    """The address of a page for people, from the server's root on, which the server prints when it starts."""

    @property
    def scopes(self) -> tuple[str, ...]:
        """Those of which the caller has to have one; none for a route that is open."""
        return (self.scope,) if isinstance(self.scope, str) else self.scope

    def allows(self, method: str) -> bool:
        """Whether requests with this method are answered."""
        if self.methods is None or method in self.methods:
            return True
        return method == "HEAD" and "GET" in self.methods and self.takes_head
