"""JSON Web Tokens: who signed them, for whom, until when, and what they grant.

1. Only signatures that need a private key are taken; which of them, the token and the key must agree on.
2. A token must be meant for this server (`aud`), end (`exp`), have begun (`nbf`) and come from the issuer (`iss`).
3. What a token grants in a form that is not understood, it does not grant.
"""

from __future__ import annotations

import base64
import copy
from typing import Any

import msgspec
from joserfc import jws
from joserfc.errors import ClaimError, JoseError, MissingClaimError
from joserfc.jwt import ClaimsOption, JWTClaimsRegistry

from dragoman.access.callers import LEEWAY_SECONDS, Caller
from dragoman.access.keys import Key, KeySource
from dragoman.clock import Clock
from dragoman.errors import Unauthenticated

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)

_TYPES = {"jwt", "at+jwt"}
_MOST_HEADER = 4096
_MOST_NAME = 256
_END_OF_TIME = 2**53
_BAD = (JoseError, msgspec.MsgspecError, ValueError, TypeError, RecursionError)
_REASONS = {
    "aud": "The token is meant for another server",
    "exp": "The token has expired",
    "iss": "The token is from another issuer",
    "nbf": "The token is not valid yet",
    "sub": "The token does not say whose it is",
}


class JwtVerifier:
    """Judges tokens by an issuer's public keys."""

    def __init__(
        self,
        keys: KeySource,
        clock: Clock,
        *,
        audience: str,
        issuer: str | None,
        require_scopes: bool = True,
        roles_claim: str = "roles",
        tenant_claim: str = "tenant",
    ) -> None:
        self._keys = keys
        self._requires_scopes = require_scopes
        self._roles_claim = roles_claim
        self._tenant_claim = tenant_claim
        self._signatures = _signature_registry()
        of_issuer: dict[str, ClaimsOption] = {} if issuer is None else {"iss": {"essential": True, "value": issuer}}
        self._claims = JWTClaimsRegistry(
            lambda: int(clock.now().timestamp()),
            LEEWAY_SECONDS,
            aud={"essential": True, "value": audience},
            exp={"essential": True},
            sub={"essential": True},
            **of_issuer,
        )

    async def verify(self, token: str) -> Caller:
        header = _header_of(token)
        claims = self._checked(token, await self._keys.find(header.kid))
        try:
            self._claims.validate(claims)
        except MissingClaimError as error:
            raise Unauthenticated(f"The token does not say {error.claim}") from None
        except ClaimError as error:
            raise Unauthenticated(_REASONS.get(error.claim, "A claim of the token is wrong")) from None
        client = claims.get("client_id", claims.get("azp"))
        return Caller(
            _name(claims["sub"]),
            frozenset(_words(_claim(claims, self._roles_claim))),
            frozenset((*_words(claims.get("scope")), *_words(claims.get("scp")))) if self._requires_scopes else None,
            _name(claims.get("iss", ""), may_be_empty=True),  # Never None: a token's name is not one of our own.
            None if client is None else _name(client),
            float(min(claims["exp"], _END_OF_TIME)),
            tenants=frozenset(_names(_claim(claims, self._tenant_claim))),
        )

    def _checked(self, token: str, keys: list[Key]) -> dict[str, Any]:
        """The claims of a token that one of the keys has signed."""
        for key in keys:
            try:
                signed = jws.deserialize_compact(token, key, registry=self._signatures)
            except _BAD:  # The signature, or a key for another algorithm.
                continue
            try:
                return msgspec.json.decode(signed.payload or b"", type=dict[str, Any])
            except _BAD:
                raise Unauthenticated("The token holds no claims") from None
        raise Unauthenticated("The token's signature is wrong")


class _Header(msgspec.Struct):
    alg: str
    kid: str | None = None
    typ: str = "JWT"
    crit: Any = None


def _header_of(token: str) -> _Header:
    """The header of a token, if it is one that can be judged at all; nothing in it is trusted."""
    encoded = token.partition(".")[0]
    try:
        header = msgspec.json.decode(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)), type=_Header)
    except _BAD:
        raise Unauthenticated("The token is malformed") from None
    if header.alg not in ALGORITHMS:
        raise Unauthenticated("The token is signed with an algorithm that is not taken")
    if header.typ.lower().removeprefix("application/") not in _TYPES or header.crit is not None:
        raise Unauthenticated("The token is not of a kind that is taken")
    return header


def _signature_registry() -> jws.JWSRegistry:
    registry = jws.JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
    registry.max_header_length = _MOST_HEADER
    # The name `EdDSA` is deprecated, and what most issuers use. Without a copy, every token would log a warning.
    registry.algorithms = {name: copy.copy(jws.JWSRegistry.algorithms[name]) for name in ALGORITHMS}
    registry.algorithms["EdDSA"].security_warning = None
    return registry


def _name(value: object, *, may_be_empty: bool = False) -> str:
    if not isinstance(value, str) or len(value) > _MOST_NAME or not (value or may_be_empty):
        raise Unauthenticated("The token does not say whose it is")
    return value


def _claim(claims: dict[str, Any], name: str) -> Any:
    """A claim of that whole name, or, for `a.b`, b within a."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _names(value: object) -> list[str]:
    """A name, or a list of names, which may have spaces in them."""
    listed = value if isinstance(value, list) else [value]
    return [name for name in listed if isinstance(name, str) and 0 < len(name) <= _MOST_NAME]


def _words(value: object) -> list[str]:
    """A list of words, or words with spaces between."""
    if isinstance(value, str):
        return value.split()
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []
