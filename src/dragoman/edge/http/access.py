"""Which requests are let in, and whose they are: the checks on `Host`, `Origin` and the caller's credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.access.callers import ANONYMOUS, Caller
from dragoman.edge.asgi import Header, Headers, RequestRefused
from dragoman.edge.http.origins import OriginCheck
from dragoman.errors import (
    HeaderMismatch,
    InternalError,
    InvalidRequest,
    MissingScope,
    Unauthenticated,
    VerifierUnavailable,
)
from dragoman.protocol import headers as rules
from dragoman.telemetry.log import Logger

if TYPE_CHECKING:
    from dragoman.access.authenticator import Authenticator

_SINGLE = (
    b"host",
    b"origin",
    b"authorization",
    b"content-type",
    b"content-length",
    b"mcp-session-id",
    b"last-event-id",
)


class HttpAccess:
    """Without an authenticator every caller is `ANONYMOUS`."""

    def __init__(self, origins: OriginCheck, authenticator: Authenticator | None, logger: Logger) -> None:
        self._origins = origins
        self._let_in = origins.let_in
        self._authenticator = authenticator
        self._logger = logger

    @property
    def is_authenticated(self) -> bool:
        """Whether callers have to say who they are."""
        return self._authenticator is not None

    def known_caller(self, headers: Headers) -> Caller | None:
        """The caller of a request like one that was let in a moment ago, and not from a page; None for any other."""
        if b"origin" in headers or (headers.get(b"host"), None) not in self._let_in:
            return None
        return ANONYMOUS if self._authenticator is None else self._authenticator.known_by(headers)

    def admit(self, pairs: list[Header]) -> Headers:
        """The headers of a request by name. Raises `RequestRefused` for one that is not let in."""
        headers = dict(pairs)
        if len(headers) != len(pairs):
            _refuse_doubles(pairs)
            headers = rules.joined(pairs)  # None of the values is hidden from whatever decides by them.
        refusal = self._origins.refusal(headers)
        if refusal is not None:
            raise RequestRefused(refusal[0], InvalidRequest(refusal[1]))
        return headers

    async def caller(self, headers: Headers) -> Caller:
        """The caller. Raises `RequestRefused` for one that is not known, or cannot be verified now."""
        authenticator = self._authenticator
        if authenticator is None:
            return ANONYMOUS
        known = authenticator.known_by(headers)
        if known is not None:
            return known
        try:
            return await authenticator.authenticate_by(headers)
        except Unauthenticated as error:
            challenge = authenticator.challenge(error.error, reason=error.reason)
            raise RequestRefused(401, InvalidRequest(error.reason), ((b"www-authenticate", challenge),)) from None
        except VerifierUnavailable as error:
            self._logger.error("no caller can be verified", {"reason": str(error)})
            later = ((b"retry-after", b"5"),)
            raise RequestRefused(503, InternalError("Tokens cannot be verified at the moment"), later) from None

    def require(self, scope: str, caller: Caller) -> None:
        """Raise `RequestRefused` for a caller that does not have the scope of a route."""
        if caller.has(scope):
            return
        refusal = InvalidRequest(f"The scope {scope} is missing")
        if self._authenticator is None:
            raise RequestRefused(403, refusal)
        challenge = self._authenticator.challenge("insufficient_scope", scope=scope)
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
