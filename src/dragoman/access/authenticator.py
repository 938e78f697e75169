"""Who sent a request, by its `Authorization` header. What was found out is remembered for a little while.

1. A token that was good is taken without another look for at most `TRUST_SECONDS`, and never beyond its own end.
2. One that was bad is refused without another look for at most `DISTRUST_SECONDS`.
3. Both memories are bounded, and hold hashes of tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from dragoman.access.callers import Caller
from dragoman.access.metadata import metadata_url
from dragoman.access.settings import TOKEN_PATTERN, AuthConfig
from dragoman.access.static_keys import StaticKeys
from dragoman.access.verifiers import Verifier
from dragoman.clock import Clock
from dragoman.errors import Unauthenticated

if TYPE_CHECKING:
    from dragoman.access.keys import KeyDocuments

TRUST_SECONDS = 60.0
DISTRUST_SECONDS = 5.0
MOST_TRUSTED = 4096
MOST_DISTRUSTED = 1024
MOST_TOKEN = 16_384

T = TypeVar("T")
Identify: TypeAlias = Callable[[dict[str, str]], Caller | Awaitable[Caller | None] | None]


class Authenticator:
    """Asks each verifier in turn; the first that knows the token decides."""

    def __init__(self, verifiers: Sequence[Verifier], clock: Clock, resource: str | None = None) -> None:
        self._verifiers = verifiers
        self._clock = clock
        self._monotonic = clock.monotonic
        self._metadata_url = None if resource is None else metadata_url(resource)
        self._trusted: dict[bytes, tuple[float, Caller]] = {}
        self._distrusted: dict[bytes, tuple[float, str]] = {}

    def known(self, authorization: bytes | None) -> Caller | None:
        """The caller, if the same header was found good a moment ago; needs no event loop and no I/O."""
        if authorization is None:
            return None
        entry = self._trusted.get(sha256(authorization).digest())
        if entry is None or self._monotonic() >= entry[0]:
            return None
        return entry[1]

    def known_by(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        """`known`, for the headers of a request."""
        return self.known(headers.get(b"authorization"))

    async def authenticate_by(self, headers: Mapping[bytes, bytes]) -> Caller:
        """`authenticate`, for the headers of a request."""
        return await self.authenticate(headers.get(b"authorization"))

    async def authenticate(self, authorization: bytes | None) -> Caller:
        """The caller; raises `Unauthenticated`, or `VerifierUnavailable`."""
        caller = self.known(authorization)
        if caller is not None:
            return caller
        token = _token_in(authorization)
        digest = sha256(authorization or b"").digest()
        until, reason = self._distrusted.get(digest, (0.0, ""))
        if reason and self._monotonic() < until:
            raise Unauthenticated(reason)
        try:
            caller = await self._verify(token)
        except Unauthenticated as error:
            _remember(self._distrusted, digest, (self._monotonic() + DISTRUST_SECONDS, error.reason), MOST_DISTRUSTED)
            raise
        _remember(self._trusted, digest, (self._monotonic() + self._trust_in(caller), caller), MOST_TRUSTED)
        return caller

    def challenge(self, error: str | None = None, *, reason: str | None = None, scope: str | None = None) -> bytes:
        """The `WWW-Authenticate` header of a refusal.

        `error` is that of `Unauthenticated` (401), or `insufficient_scope` (403) with the scope that is missing.
        """
        facts = {
            "error": error,
            "error_description": reason if error is not None else None,
            "scope": scope,
            "resource_metadata": self._metadata_url,
        }
        said = ", ".join(f'{name}="{_quotable(value)}"' for name, value in facts.items() if value is not None)
        return f"Bearer {said}".rstrip().encode()

    async def _verify(self, token: str) -> Caller:
        refusal = Unauthenticated("The token is not known here")
        for verifier in self._verifiers:
            try:
                return await verifier.verify(token)
            except Unauthenticated as error:
                refusal = error
        raise refusal

    def _trust_in(self, caller: Caller) -> float:
        if caller.expires_at is None:
            return TRUST_SECONDS
        return min(TRUST_SECONDS, caller.expires_at - self._clock.now().timestamp())


class CustomAuthenticator(Authenticator):
    """Asks the application about every request, and remembers nothing, so that what it revokes is refused at once.

    `identify` takes the headers, by name in lower case, and returns the caller, or None for credentials that are
    missing or wrong. It may be async. To serve requests without credentials, it returns `ANONYMOUS` for them.
    """

    def __init__(self, identify: Identify, clock: Clock) -> None:
        super().__init__((), clock)
        self._identify = identify

    def known_by(self, headers: Mapping[bytes, bytes]) -> Caller | None:
        return None

    async def authenticate_by(self, headers: Mapping[bytes, bytes]) -> Caller:
        found = self._identify({name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()})
        caller = await found if inspect.isawaitable(found) else found
        if caller is None:
            raise Unauthenticated("The credentials are missing or wrong", None)
        if not isinstance(caller, Caller):
            raise TypeError(f"identify must return a Caller or None, not {type(caller).__name__}")
        return caller


def make_authenticator(
    config: AuthConfig, clock: Clock, documents: KeyDocuments, environ: Mapping[str, str], tenant_claim: str = "tenant"
) -> Authenticator | None:
    """What the settings ask for; None when they name nobody who could be told from others. Raises `ConfigError`."""
    verifiers: list[Verifier] = []
    if config.callers:
        verifiers.append(StaticKeys(config.callers, environ))
    audience = config.audience or config.resource
    if config.takes_jwts and audience is not None:
        from dragoman.access.jwt import JwtVerifier
        from dragoman.access.keys import KeySource

        verifiers.append(
            JwtVerifier(
                KeySource(documents, clock, issuer=config.issuer, jwks=config.jwks),
                clock,
                audience=audience,
                issuer=config.issuer,
                require_scopes=config.require_scopes,
                roles_claim=config.roles_claim,
                tenant_claim=tenant_claim,
            )
        )
    return Authenticator(verifiers, clock, config.resource) if verifiers else None


def _token_in(authorization: bytes | None) -> str:
    scheme, _, token = (authorization or b"").partition(b" ")
    if scheme.lower() != b"bearer":
        raise Unauthenticated("A bearer token is needed", None)
    text = token.strip(b" ").decode("latin-1")
    if len(text) > MOST_TOKEN or not TOKEN_PATTERN.fullmatch(text):
        raise Unauthenticated("The token is malformed")
    return text


def _remember(memory: dict[bytes, tuple[float, T]], digest: bytes, entry: tuple[float, T], most: int) -> None:
    memory.pop(digest, None)  # At the end: the front is the oldest.
    while len(memory) >= most:
        del memory[next(iter(memory))]
    memory[digest] = entry


def _quotable(value: str) -> str:
    """What a quoted string of a header, as RFC 6750 narrows it, can hold of a text."""
    return "".join(character if " " <= character <= "~" and character not in '"\\' else "?" for character in value)
