"""The public keys of an issuer: fetched when one is needed, kept, and fetched again when they may have changed.

1. Whatever clients present, the issuer is asked at most once in `RETRY_SECONDS`, and once in `REFRESH_SECONDS` when all
   is well. Whoever needs the answer meanwhile waits for the same request.
2. Keys that were had stay good while the issuer cannot be reached.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlsplit

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey

from dragoman.clock import Clock
from dragoman.errors import Unauthenticated, VerifierUnavailable

RETRY_SECONDS = 5.0
REFRESH_SECONDS = 30.0
FRESH_SECONDS = 600.0
"""For how long keys are used without a look at whether they have changed."""

_MOST_KEYS = 100
_MOST_TRIED = 8
_LEAST_RSA_BITS = 2048
_TYPES: dict[str, type[RSAKey | ECKey | OKPKey]] = {
    "RSA": RSAKey,
    "EC": ECKey,
    "OKP": OKPKey,
}  # No `oct`: what everybody can read is no secret.

Key: TypeAlias = RSAKey | ECKey | OKPKey


class KeyDocuments(Protocol):
    """Where documents come from."""

    async def get(self, location: str) -> bytes:
        """What a URL or a path leads to, if it can be had soon and is small; raises `VerifierUnavailable`."""
        ...


class KeySource:
    """Finds keys by their ids, in the document at `jwks`, or in the one that `issuer` names."""

    def __init__(self, documents: KeyDocuments, clock: Clock, *, issuer: str | None, jwks: str | None) -> None:
        self._documents = documents
        self._monotonic = clock.monotonic
        self._issuer = issuer
        self._jwks = jwks
        self._keys: list[Key] = []
        self._failure: str | None = None
        self._stale_at = self._may_ask_at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def find(self, kid: str | None) -> list[Key]:
        """The keys of that id, or all when a token does not say.

        Raises `Unauthenticated` when there are none, `VerifierUnavailable` when that cannot be told.
        """
        found = self._held(kid)
        if not found:
            await self._ask()
            found = self._held(kid)
        elif self._monotonic() >= self._stale_at:
            self._begin_to_ask()  # These are good until others are known: nobody needs to wait.
        if found:
            return found
        if self._failure is not None:
            raise VerifierUnavailable(self._failure)
        raise Unauthenticated("The token is signed with an unknown key")

    def _held(self, kid: str | None) -> list[Key]:
        fitting = [key for key in self._keys if kid is None or key.get("kid") == kid]
        return fitting[:_MOST_TRIED]  # A signature is costly to check, and anybody can present one.

    async def _ask(self) -> None:
        asking = self._begin_to_ask()
        if asking is not None:
            await asyncio.shield(asking)  # One who leaves must not take the answer from the others.

    def _begin_to_ask(self) -> asyncio.Task[None] | None:
        if self._asking is None and self._monotonic() >= self._may_ask_at:
            self._asking = asyncio.create_task(self._refresh())
        return self._asking

    async def _refresh(self) -> None:
        try:
            self._keys = await self._fetch()
            self._failure = None
            self._stale_at = self._monotonic() + FRESH_SECONDS
        except VerifierUnavailable as error:
            self._failure = str(error)
        finally:
            self._may_ask_at = self._monotonic() + (REFRESH_SECONDS if self._failure is None else RETRY_SECONDS)
            self._asking = None

    async def _fetch(self) -> list[Key]:
        location = self._jwks if self._jwks is not None else await self._discover(self._issuer or "")
        keys = list(_keys_in(_decode(await self._documents.get(location), location)))
        if not keys:
            raise VerifierUnavailable(f"{location} holds no key that can be used")
        return keys

    async def _discover(self, issuer: str) -> str:
        """Where the issuer says that its keys are."""
        openid, oauth = _metadata_urls(issuer)
        try:
            content = await self._documents.get(openid)
        except VerifierUnavailable as error:
            try:
                content = await self._documents.get(oauth)
            except VerifierUnavailable:
                raise error from None
        about = _decode(content, issuer)
        if about.get("issuer") != issuer:  # Or one issuer could speak for another.
            raise VerifierUnavailable(f"the issuer at {issuer} calls itself {str(about.get('issuer'))[:200]!r}")
        jwks = about.get("jwks_uri")
        if not isinstance(jwks, str) or "://" not in jwks:  # Not a path: the issuer does not choose files of ours.
            raise VerifierUnavailable(f"the issuer at {issuer} does not say where its keys are")
        return jwks


def _metadata_urls(issuer: str) -> tuple[str, str]:
    """Where an issuer describes itself: OpenID Connect appends to its path, OAuth (RFC 8414) puts it in front."""
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    origin = f"{parts.scheme}://{parts.netloc}"
    return (
        f"{origin}{path}/.well-known/openid-configuration",
        f"{origin}/.well-known/oauth-authorization-server{path}",
    )


def _decode(content: bytes, location: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise VerifierUnavailable(f"what {location} holds is not a JSON object") from None


def _keys_in(document: dict[str, Any]) -> Iterator[Key]:
    """The keys that signatures can be checked with. Others are passed over, as RFC 7517 asks."""
    listed = document.get("keys")
    for data in listed[:_MOST_KEYS] if isinstance(listed, list) else ():
        if not isinstance(data, dict) or data.get("kty") not in _TYPES or data.get("use", "sig") != "sig":
            continue
        if data["kty"] == "RSA" and _bits(data.get("n")) < _LEAST_RSA_BITS:
            continue
        try:
            yield _TYPES[data["kty"]].import_key(data)
        except (JoseError, ValueError, TypeError, KeyError, AttributeError):
            continue


def _bits(encoded: object) -> int:
    """How long a number is that a key document holds; 0 when it is none."""
    try:
        return int.from_bytes(base64.urlsafe_b64decode(f"{encoded}==")).bit_length()
    except ValueError:
        return 0
