"""Authentication of the gateway: internal callers have a token, and external ones sign each request.

Not through the authenticator's memory of good tokens for external callers: theirs are good for one request.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from dragoman.access.callers import Caller
from dragoman.clock import Clock
from dragoman.errors import InternalFailure, NotAuthentic, Unauthenticated, VerifierUnavailable
from dragoman.gateway.port import OLD_KEY_SECONDS, Nonce, SigningKey, SigningKeys
from dragoman.gateway.signatures import SignedClaims, check_age, kid_in, verify
from dragoman.knowledge.roles import canonical
from dragoman.telemetry.log import Logger, exception_facts

if TYPE_CHECKING:
    from dragoman.access.authenticator import Authenticator

_MOST_TOKEN: Final = 16_384
_MOST_WARNED: Final = 1000
_MOST_KEYS: Final = 1000
_NONCES_OUTLIVE: Final = 3600.0
"""Seconds that nonces are remembered beyond their tokens: the clock may be set back."""


class Credential(Struct, frozen=True):
    """The caller that sent a request, and the roles that it can have."""

    caller: Caller
    """Its name is what `principal.sub` has to be."""
    roles: frozenset[str]
    """The most that the request can have."""
    kid: str | None = None
    line: str = ""
    """Of the key."""
    claims: SignedClaims | None = None
    """Of an external caller."""

    @property
    def author(self) -> str:
        """The caller's name for people, with the key that it has signed with: holders of keys choose their names."""
        return self.caller.principal if self.kid is None else f"{self.caller.name} ({self.kid})"

    @property
    def known_as(self) -> str:
        """The caller's name in the registry: the same after its key was rotated."""
        return self.caller.principal if self.kid is None else f"{self.caller.name} ({self.line})"


class Credentials:
    """Tells internal callers from external ones by the key that a token names."""

    def __init__(
        self,
        keys: SigningKeys,
        authenticator: Authenticator | None,
        clock: Clock,
        logger: Logger,
        audience: str,
    ) -> None:
        self._keys = keys
        self._authenticator = authenticator
        self._clock = clock
        self._logger = logger
        self._audience = audience
        self._warned: dict[str, None] = {}
        self._found: dict[str, SigningKey] = {}
        """Keys that were not revoked when they were last looked up. Nothing else about a key ever changes."""

    async def identify(
        self, headers: Mapping[bytes, bytes], method: str, url: str, at: float | None = None
    ) -> Credential:
        """Find out who sent a request to an address, by its headers. Its token has to be valid now, or `at` a time.

        Raises `NotAuthentic`, `VerifierUnavailable`, `StorageError`.
        """
        try:
            token = _token_of(headers)
            kid = None if token is None else kid_in(token)
            key = None if kid is None else await self._find(kid)
            if token is not None and key is not None:
                return self._external(token, key, method, url, at)
            if self._authenticator is None:
                raise Unauthenticated("A token is needed that a key has signed which is known here")
            caller = await self._internal_caller(self._authenticator, headers)
            return Credential(caller, canonical(caller.roles))
        except Unauthenticated as error:
            raise not_authentic(error) from None

    @property
    def has_authenticator(self) -> bool:
        """Whether there are internal callers."""
        return self._authenticator is not None

    async def spend(self, credential: Credential) -> None:
        """Use the nonce of an external caller. Raises `NotAuthentic` if it was used before."""
        nonce = self.nonce_of(credential)
        if nonce is not None and not await self._keys.spend(nonce):
            raise self.nonce_was_used(nonce)

    def nonce_of(self, credential: Credential, at: float | None = None) -> Nonce | None:
        """The nonce of an external caller, to be used now. Raises `NotAuthentic` if the token has expired."""
        claims, kid = credential.claims, credential.kid
        if claims is None or kid is None:
            return None
        now = self._clock.now().timestamp()
        if (now if at is None else at) >= claims.exp:  # The body may have taken its time.
            raise not_authentic(Unauthenticated("The token has expired"))
        return Nonce(kid, claims.nonce, max(claims.exp, now) + _NONCES_OUTLIVE, now)

    def nonce_was_used(self, nonce: Nonce) -> NotAuthentic:
        """The error for a nonce that cannot be used."""
        self._found.pop(nonce.kid, None)  # If it has been revoked, later requests are refused before they are counted.
        return not_authentic(Unauthenticated("The nonce was used before, or the key has been revoked"))

    async def check_key(self, kid: str) -> None:
        """Raise `NotAuthentic` for a key that was revoked, or became too old, since a request was accepted."""
        key = await self._keys.find(kid)
        try:
            if key is None:
                raise Unauthenticated("The key is not known any longer")
            check_age(key, self._clock.now().timestamp())
        except Unauthenticated as error:
            raise not_authentic(error) from None

    async def _find(self, kid: str) -> SigningKey | None:
        """The key of this name. One that was revoked a moment ago may still be found: its nonces cannot be used."""
        key = self._found.get(kid)
        if key is None:
            key = await self._keys.find(kid)
            if key is not None and key.revoked_at is None:
                self._found[kid] = key
                if len(self._found) > _MOST_KEYS:
                    del self._found[next(iter(self._found))]
        return key

    async def _internal_caller(self, authenticator: Authenticator, headers: Mapping[bytes, bytes]) -> Caller:
        try:
            return await authenticator.authenticate_by(headers)
        except (Unauthenticated, VerifierUnavailable):
            raise
        except Exception as error:  # An application's own authenticator may raise anything.
            self._logger.error("a caller could not be identified", exception_facts(error, InternalFailure.code))
            raise InternalFailure("The caller could not be identified") from error

    def _external(self, token: str, key: SigningKey, method: str, url: str, at: float | None) -> Credential:
        now = self._clock.now().timestamp()
        claims = verify(token, key, self._audience, now if at is None else at)
        check_age(key, now)  # Only its holder hears what has become of a key.
        claims.check_request(method, url)
        if now - key.created_at > OLD_KEY_SECONDS and key.kid not in self._warned:
            self._warned[key.kid] = None
            if len(self._warned) > _MOST_WARNED:
                del self._warned[next(iter(self._warned))]
            days = int((now - key.created_at) // 86_400)
            self._logger.warn("a signing key is going to be refused soon", {"kid": key.kid, "ageDays": days})
        caller = _external_caller(claims.sub, key.tenant, key.roles, key.line)
        return Credential(caller, caller.roles, key.kid, key.line, claims)


@lru_cache(maxsize=1000)
def _external_caller(sub: str, tenant: str, roles: tuple[str, ...], line: str) -> Caller:
    # With an issuer: whatever name a key's holder chooses, it is nobody else's, of another key of the tenant included.
    return Caller(sub, canonical(roles), issuer=issuer_of(line, tenant), tenants=frozenset((tenant,)))


def verified_part(caller: Caller, kid: str | None) -> str:
    """The verified part of a caller: the key that it has signed with, through rotations, or the caller of a token."""
    return caller.principal if kid is None or caller.issuer is None else caller.issuer


def issuer_of(line: str, tenant: str) -> str:
    """What vouches for the names of callers that sign with keys of a line."""
    return f"key {line} of {tenant}"


def not_authentic(error: Unauthenticated) -> NotAuthentic:
    """The error that answers a request which does not show who sent it."""
    return NotAuthentic(error.reason, {"reason": "unauthenticated"})


def _token_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The bearer token; None without one. An application's own authenticator may look at other headers."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer" or len(token) > _MOST_TOKEN:
        return None
    return token.strip(b" ").decode("latin-1")
