"""Which pages and names may reach the server: the checks on `Host` and `Origin`.

A page in a browser can have its own name point at this machine and then talk to servers on it. Such a request always
carries a name in `Host`, and the page's address in `Origin`. So addresses and `localhost` are let in, names only when
they are listed, and pages only from this machine, this server or a listed origin.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from dragoman.edge.asgi import JSON, Application, Header, Headers, Post, Receive, Scope, Send
from dragoman.process.address import is_address, is_loopback

_CORS_ALLOWED = (
    b"authorization, content-type, last-event-id, mcp-method, mcp-name, mcp-protocol-version, mcp-session-id"
)
_MOST_REMEMBERED = 1024
_LONGEST_REMEMBERED = 300
# Strict, where the standard library's parsers are not: they read `[::1]evil.example.org` as `::1`.
_AUTHORITY = re.compile(
    r"(?:(?P<name>[a-z0-9._~-]+)|\[(?P<address>[0-9a-f.]*:[0-9a-f:.]*)\])(?::(?P<port>[0-9]{1,5}))?"
)


class OriginCheck:
    """Remembers what it let in, so that a keep-alive client costs two look-ups."""

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)
        self.let_in: set[tuple[bytes | None, bytes | None]] = set()
        """`Host` and `Origin` of requests that were let in."""

    def refusal(self, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        """The status and the reason to refuse a request with; None lets it in."""
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if (host, origin) in self.let_in:
            return None
        if not self._is_known_host(_text(host)):
            return 421, f"Host {_shown(host)} is not served here; list it in http.allowed_hosts if it should be"
        if origin is not None and not self.is_known_origin(origin, host):
            return 403, f"Origin {_shown(origin)} may not call this server; list it in http.allowed_origins if it may"
        if len(self.let_in) < _MOST_REMEMBERED and len(host or b"") + len(origin or b"") < _LONGEST_REMEMBERED:
            self.let_in.add((host, origin))
        return None

    def is_known_origin(self, origin: bytes, host: bytes | None) -> bool:
        """Whether pages of `origin` may call: those of this machine, of this server, and listed ones."""
        text = _text(origin).rstrip("/")
        if text in self._origins or "*" in self._origins:
            return True
        scheme, _, authority = text.partition("://")
        if scheme not in ("http", "https"):
            return False
        name = _name_in(authority)
        return name is not None and (authority == _text(host) or is_loopback(name))

    def _is_known_host(self, host: str) -> bool:
        if "*" in self._hosts or host in self._hosts:
            return True
        name = _name_in(host)
        return name is not None and (name in self._hosts or name == "localhost" or is_address(name))


def with_cors(send: Send, origin: bytes) -> Send:
    """A `send` that lets a page of `origin` read the response."""
    added = _cors_headers(origin)

    async def send_with_cors(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *added]
        await send(message)

    return send_with_cors


class CorsPost:
    """A post whose response a page of `origin` can read."""

    def __init__(
        self, post: Post, origin: bytes, run: Callable[[Application, Scope, Receive, Send], Awaitable[None]]
    ) -> None:
        """`run` has an application answer, and answers in its place if it fails."""
        self._post = post
        self._origin = origin
        self._run = run
        self.watch = post.watch

    @property
    def on_gone(self) -> Callable[[], object] | None:
        return self._post.on_gone

    @on_gone.setter
    def on_gone(self, on_gone: Callable[[], object] | None) -> None:
        self._post.on_gone = on_gone

    def answer(self, status: int, body: bytes, headers: tuple[Header, ...] = (JSON,)) -> None:
        self._post.answer(status, body, headers + _cors_headers(self._origin))

    def go_on(self, app: Application) -> None:
        def answer(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            return self._run(app, scope, receive, with_cors(send, self._origin))

        self._post.go_on(answer)


def preflight_headers(headers: Headers, methods: bytes) -> tuple[Header, ...]:
    """The headers of the answer to a page that asks whether it may send a request."""
    return (
        (b"allow", methods),
        (b"access-control-allow-methods", methods),
        (b"access-control-allow-headers", headers.get(b"access-control-request-headers", _CORS_ALLOWED)),
        (b"access-control-max-age", b"600"),
    )


def _cors_headers(origin: bytes) -> tuple[Header, ...]:
    return (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"mcp-session-id, www-authenticate"),
        (b"vary", b"origin"),
    )


def _name_in(authority: str) -> str | None:
    """The name or address in `name:port`; None if it is anything else, such as `user@name`."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None or int(found["port"] or 0) > 65_535:
        return None
    return found["name"] or found["address"]


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("latin-1").lower()


def _shown(value: bytes | None) -> str:
    return repr(_text(value)[:200])
