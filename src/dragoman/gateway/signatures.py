"""Signed requests of external callers: a compact JWS by an Ed25519 key that is known here, good for one request.

1. The header names the key and nothing that could lead elsewhere: `jku`, `x5u`, `jwk`, `crit` and the like are refused.
2. The claims bind the token to the method, the address and the bytes of the body, for at most ten minutes.
3. Whether the nonce is new is not decided here: that is written, and nothing is written before the rate is known.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64decode
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey
from msgspec import Meta, Struct

from dragoman.access.callers import LEEWAY_SECONDS
from dragoman.errors import Unauthenticated
from dragoman.gateway.port import LONGEST_KEY_SECONDS, SigningKey

ALGORITHMS: Final = ("Ed25519", "EdDSA")
LONGEST_LIFE: Final = 600
"""Seconds from `iat` to `exp`."""
_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_MOST_HEADER = 1024
_BAD = (JoseError, msgspec.MsgspecError, ValueError, TypeError, RecursionError)
_TYPES = {"jwt", "jws", "jose"}


class SignedHeader(Struct, frozen=True, forbid_unknown_fields=True):
    """The header of a token, of which nothing is trusted but which key to try."""

    alg: str
    kid: Annotated[str, Meta(min_length=1, max_length=128)]
    typ: str = "JWT"


class SignedClaims(Struct, frozen=True):
    """What a caller has signed."""

    sub: Annotated[str, Meta(min_length=1, max_length=256)]
    aud: str | list[str]
    iat: int
    exp: int
    nonce: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._~+/=-]{16,128}$(?!\n)")]
    htm: str
    htu: Annotated[str, Meta(max_length=2048)]
    body_sha256: str

    def check_request(self, method: str, url: str) -> None:
        """Raise `Unauthenticated` for a request that the token was not made for."""
        if self.htm != method:
            raise Unauthenticated("The token was signed for another method")
        if self.htu != url:
            raise Unauthenticated("The token was signed for another address")

    def check_body(self, body: bytes) -> None:
        """Raise `Unauthenticated` for another body than the one that was signed."""
        if not hmac.compare_digest(self.body_sha256.lower().encode(), hashlib.sha256(body).hexdigest().encode()):
            raise Unauthenticated("The token was signed for another body")


def kid_in(token: str) -> str | None:
    """The name of the key in the header of a token; None if it has none."""
    try:
        return msgspec.json.decode(_header_bytes(token), type=_WithKid).kid
    except _BAD:
        return None


class _WithKid(Struct):
    kid: str


def check_age(key: SigningKey, now: float) -> None:
    """Raise `Unauthenticated` for a key that may not be used any longer."""
    if key.revoked_at is not None:
        raise Unauthenticated("The key has been revoked")
    if now - key.created_at > LONGEST_KEY_SECONDS:
        raise Unauthenticated("The key is older than 90 days")


def verify(token: str, key: SigningKey, audience: str, now: float) -> SignedClaims:
    """The claims of a token that `key` has signed and that is valid now. Raises `Unauthenticated`."""
    if not _COMPACT.fullmatch(token):
        raise Unauthenticated("The token is malformed")
    try:
        header = msgspec.json.decode(_header_bytes(token), type=SignedHeader)
    except _BAD:
        raise Unauthenticated("The header of the token is not one that is taken") from None
    if header.alg not in ALGORITHMS or header.typ.lower() not in _TYPES:
        raise Unauthenticated("The token is signed with an algorithm that is not taken")
    signed, _, signature = token.rpartition(".")
    try:
        _public_key(key.public).verify(_bytes(signature), signed.encode())
    except (InvalidSignature, *_BAD):
        raise Unauthenticated("The token's signature is wrong") from None
    try:
        claims = msgspec.json.decode(_bytes(signed.partition(".")[2]), type=SignedClaims)
    except _BAD:
        raise Unauthenticated("A claim of the token is missing or wrong") from None
    _check_times(claims, now)
    if audience != claims.aud and not (isinstance(claims.aud, list) and audience in claims.aud):
        raise Unauthenticated("The token is meant for another server")
    return claims


@lru_cache(maxsize=1000)
def _public_key(x: str) -> Ed25519PublicKey:
    # Not through joserfc, which would decode and check the header once more.
    return Ed25519PublicKey.from_public_bytes(_bytes(x))


def _check_times(claims: SignedClaims, now: float) -> None:
    if claims.exp <= claims.iat or claims.exp - claims.iat > LONGEST_LIFE:
        raise Unauthenticated(f"The token may live for at most {LONGEST_LIFE} seconds")
    if claims.iat > now + LEEWAY_SECONDS:
        raise Unauthenticated("The token is not valid yet")
    if claims.exp <= now:
        raise Unauthenticated("The token has expired")


def _header_bytes(token: str) -> bytes:
    encoded = token.partition(".")[0]
    if len(encoded) > _MOST_HEADER:
        raise ValueError("the header is too long")
    return _bytes(encoded)


def _bytes(encoded: str) -> bytes:
    return urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))


def sign(claims: dict[str, Any], private: dict[str, Any], kid: str) -> str:
    """A token with these claims, for who has the private half of a key as a JSON Web Key."""
    header = {"alg": "Ed25519", "kid": kid, "typ": "JWT"}
    return jws.serialize_compact(header, msgspec.json.encode(claims), OKPKey.import_key(private), ["Ed25519"])
