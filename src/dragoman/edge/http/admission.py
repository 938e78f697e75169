"""Which requests are let in, and whose they are.

1. A header that decides something is there once, and `Host` and `Origin` are those of clients that may come in.
2. `HttpAdmission.admit` serves both doors, and waits for nothing. Its findings follow from the head alone, so
   requests with the same head share them. The caller is looked up for each request: credentials expire.
3. Of a POST nothing is read before its caller is known and its type and length are accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from dragoman.access.callers import ANONYMOUS, Caller, is_known
from dragoman.edge.asgi import MOST_READ_AT_ONCE, Bodies, Header, Headers, Receive, RequestRefused, TooLarge
from dragoman.edge.connection import Services
from dragoman.edge.http.nearness import Nearness
from dragoman.edge.http.origins import OriginCheck
from dragoman.edge.http.siblings import Siblings
from dragoman.errors import (
    HeaderMismatch,
    InternalError,
    InvalidRequest,
    MissingScope,
    Unauthenticated,
    VerifierUnavailable,
)
from dragoman.protocol import headers as rules
from dragoman.protocol.versions import HANDSHAKE_VERSIONS

if TYPE_CHECKING:
    from dragoman.access.authenticator import Authenticator

HANDSHAKE = frozenset(version.encode() for version in HANDSHAKE_VERSIONS)
"""Versions of the handshake era, as headers have them."""
_MOST_REMEMBERED = 256
_LONGEST_REMEMBERED = 300
_SINGLE = (
    b"host",
    b"origin",
    b"authorization",
    b"content-type",
    b"content-length",
    b"mcp-session-id",
    b"last-event-id",
)


class Admitted(Struct, frozen=True, gc=False):
    """A request that is let in, as far as its head says."""

    pairs: list[Header]
    """The headers, as they came."""
    headers: Headers
    """By name; values of the same name are joined."""
    is_for_other: bool
    """Whether another process may have to answer it."""
    routing: rules.Routing
    """The routing headers, which repeat parts of the body."""
    could_be_handshake: bool
    """Whether a request of the handshake era can have such headers; its body decides then."""
    takes_json: bool
    takes_streams: bool
    """Whether the client takes event streams."""
    unnamed: Caller
    """The caller on a server that authenticates nobody: `LOCAL` or `ANONYMOUS`."""


class HttpAdmission:
    """Without an authenticator, `nearness` knows the owner's requests, and all other callers are `ANONYMOUS`."""

    def __init__(
        self,
        origins: OriginCheck,
        authenticator: Authenticator | None,
        services: Services,
        siblings: Siblings | None = None,
        nearness: Nearness | None = None,
    ) -> None:
        self._origins = origins
        self._let_in = origins.let_in
        self._accepts: dict[bytes | None, tuple[bool, bool]] = {}
        self._authenticator = authenticator
        self._logger = services.logger
        self._bodies = Bodies(services.max_message_bytes, MOST_READ_AT_ONCE, services.shape)
        self._sure_bytes = min(services.max_message_bytes, services.shape.sure_bytes)
        self.most_bytes = services.max_message_bytes
        """Of a body."""
        self.siblings = siblings
        self.nearness = nearness or Nearness()

    @property
    def is_authenticated(self) -> bool:
        """Whether callers have to say who they are."""
        return self._authenticator is not None

    def admit(self, pairs: list[Header], headers: Headers) -> Admitted:
        """The request with these headers, as they came and by name. Raises `RequestRefused` if it is not let in."""
        if len(headers) != len(pairs):
            _refuse_doubles(pairs)
        if (headers.get(b"host"), headers.get(b"origin")) not in self._let_in:
            refusal = self._origins.refusal(headers)
            if refusal is not None:
                raise RequestRefused(refusal[0], InvalidRequest(refusal[1]))
        accept, version = headers.get(b"accept"), headers.get(rules.VERSION)
        is_unversioned = version is None and rules.METHOD not in headers and rules.NAME not in headers
        return Admitted(
            pairs,
            headers,
            self.siblings is not None and self.siblings.is_for_other(headers),
            rules.routing_in(headers, pairs),
            version in HANDSHAKE or is_unversioned,
            *(self._accepts.get(accept) or self._accepted(accept)),
            ANONYMOUS if self._authenticator is not None else self.nearness.caller_of(headers),
        )

    def known_caller(self, request: Admitted) -> Caller | None:
        """The caller; None if its credentials have to be verified first."""
        authenticator = self._authenticator
        return request.unnamed if authenticator is None else authenticator.known_by(request.headers)

    def _accepted(self, accept: bytes | None) -> tuple[bool, bool]:
        kinds = {kind.split(b";")[0].strip().lower() for kind in (accept or b"*/*").split(b",")}
        takes_json = bool(kinds & {b"*/*", b"application/*", b"application/json"})
        takes_streams = bool(kinds & {b"*/*", b"text/*", b"text/event-stream"})
        if len(self._accepts) < _MOST_REMEMBERED and len(accept or b"") < _LONGEST_REMEMBERED:
            self._accepts[accept] = (takes_json, takes_streams)
        return takes_json, takes_streams

    def check_post(self, headers: Headers, body: bytes) -> None:
        """Raise `RequestRefused` for a message that is not JSON, or consists of more than a request may."""
        if headers.get(b"content-type") != b"application/json":
            _check_type(headers)
        if len(body) > self._sure_bytes:
            self._bodies.check(body)

    async def read(self, headers: Headers, receive: Receive, caller: Caller) -> bytes:
        """The body. Raises `RequestRefused` for one that is longer, or consists of more, than a request may."""
        length = headers.get(b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 18 or int(length) > self.most_bytes):
            raise TooLarge(self.most_bytes)
        return await self._bodies.read(receive, caller.principal if is_known(caller) else "")

    async def collect(self, receive: Receive, most: int, holder: str) -> bytes:
        """The body of at most so many bytes of a request that its handler authenticates. Raises `BodyNotRead`."""
        return await self._bodies.collect(receive, most, holder)

    async def read_post(self, request: Admitted, receive: Receive) -> tuple[Caller, bytes]:
        """The caller and the body of a message."""
        caller = await self.caller(request)
        _check_type(request.headers)
        return caller, await self.read(request.headers, receive, caller)

    async def caller(self, request: Admitted) -> Caller:
        """The caller. Raises `RequestRefused` for one that is not known, or cannot be verified now."""
        authenticator = self._authenticator
        if authenticator is None:
            return request.unnamed
        try:
            return await authenticator.authenticate_by(request.headers)
        except Unauthenticated as error:
            challenge = authenticator.challenge(error.error, reason=error.reason)
            raise RequestRefused(401, InvalidRequest(error.reason), ((b"www-authenticate", challenge),)) from None
        except VerifierUnavailable as error:
            self._logger.error("no caller can be verified", {"reason": str(error)})
            later = ((b"retry-after", b"5"),)
            raise RequestRefused(503, InternalError("Tokens cannot be verified at the moment"), later) from None

    def require(self, scopes: Sequence[str], caller: Caller) -> None:
        """Raise `RequestRefused` for a caller that has none of the scopes of a route, if it has some."""
        if not scopes or any(map(caller.has, scopes)):
            return
        refusal = InvalidRequest(f"The scope {' or '.join(scopes)} is missing")
        if self._authenticator is None:
            raise RequestRefused(403, refusal)
        challenge = self._authenticator.challenge("insufficient_scope", scope=scopes[0])
        raise RequestRefused(403, refusal, ((b"www-authenticate", challenge),))

    def step_up(self, error: MissingScope, caller: Caller) -> tuple[int, tuple[Header, ...]]:
        """How a client that gets its tokens from an issuer is told to ask for more; others can only read the answer."""
        if self._authenticator is None or caller.issuer is None:
            return 200, ()
        challenge = self._authenticator.challenge("insufficient_scope", reason=error.message, scope=error.scope)
        return 403, ((b"www-authenticate", challenge),)


def _refuse_doubles(pairs: list[Header]) -> None:
    """Raise for a header that decides something and is there twice: others on the way may have read the other one."""
    names = [name for name, _ in pairs]
    for name in _SINGLE:
        if names.count(name) > 1:
            raise RequestRefused(400, InvalidRequest(f"{name.decode()} is there more than once"))
    if names.count(rules.VERSION) > 1:
        raise RequestRefused(400, HeaderMismatch(f"Header mismatch: {rules.VERSION.decode()} is there more than once"))


def _check_type(headers: Headers) -> None:
    content_type = headers.get(b"content-type", b"")
    if content_type != b"application/json" and content_type.split(b";")[0].strip().lower() != b"application/json":
        raise RequestRefused(415, InvalidRequest("Content-Type must be application/json"))
