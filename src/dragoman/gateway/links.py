"""Links to artifacts: whoever has one can read one object, for a quarter of an hour, and do nothing else.

1. The signature is over method, tenant, hash, MIME type and expiry. It is compared as text, in constant time: there is
   one spelling of a link, and no other is accepted.
2. Keys are made on demand, a new one each day, and are shared by all processes. A key is kept until no link that it has
   signed can be good.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Final, Protocol
from urllib.parse import quote, unquote, urlsplit

import msgspec
from msgspec import Struct

from dragoman.clock import Clock
from dragoman.errors import Expired, Unauthorized
from dragoman.gateway.envelope import LONGEST_URI, malformed
from dragoman.gateway.objects import LinkKey, LinkKeys
from dragoman.storage.port import PurgeClock

ARTIFACTS: Final = "/mcp/artifacts"
LINK_SECONDS: Final = 900
_NEW_KEY_SECONDS: Final = 86_400.0
_OLD_KEY_SECONDS: Final = _NEW_KEY_SECONDS + LINK_SECONDS + 3600.0
"""A process may sign with a key until it makes the next, and clocks may differ a little."""
_HASH = re.compile(r"[0-9a-f]{64}")
_QUERY = re.compile(
    r"tenant=([A-Za-z0-9._~%-]{1,1600})&type=([A-Za-z0-9._~%-]{1,400})&expires=([1-9][0-9]{0,11})"
    r"&key=([0-9a-f]{16})&signature=([A-Za-z0-9_-]{43})"
)


class ArtifactLink(Struct, frozen=True):
    """The object that a link gives access to."""

    tenant: str
    sha256: str
    mime: str
    expires_at: int
    """In seconds since 1970. It is good before that moment, and not at it."""


class Links(Protocol):
    """Makes links to objects, and reads them again."""

    async def make(self, link: ArtifactLink, base: str) -> str:
        """The address of an object. `base` is how clients reach the server."""
        ...

    async def read(self, uri: str, tenant: str) -> str:
        """The hash in a link for this tenant, whatever else there is of the object.

        Raises `MalformedEnvelope` for what is no link, `Unauthorized` for one of another store or tenant or that was
        altered, and `Expired`.
        """
        ...


class SignedLinks:
    """Implements `Links`, for objects that the gateway itself serves."""

    def __init__(
        self,
        keys: LinkKeys,
        clock: Clock,
        purge_clock: PurgeClock,
        public_url: str | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._purge_clock = purge_clock
        self._public_url = public_url
        self._random_bytes = random_bytes
        self._known: list[LinkKey] = []

    async def make(self, link: ArtifactLink, base: str) -> str:
        key = await self._current()
        query = (
            f"tenant={quote(link.tenant, safe='')}&type={quote(link.mime, safe='')}&expires={link.expires_at}"
            f"&key={key.kid}&signature={_signature(key, link)}"
        )
        return f"{base}{ARTIFACTS}/{link.sha256}?{query}"

    async def read(self, uri: str, tenant: str) -> str:
        try:
            parts = urlsplit(uri)
            before, _, hash = parts.path.rpartition("/")
        except ValueError:
            raise malformed("payload.artifact_uri", "is no URL") from None
        if parts.fragment or len(uri) > LONGEST_URI:
            raise malformed("payload.artifact_uri", "is no link to an artifact")
        base = f"{parts.scheme}://{parts.netloc}" if parts.netloc else ""
        if not before.endswith(ARTIFACTS) or (self._public_url is not None and base not in ("", self._public_url)):
            raise not_ours()
        link = await self.open(hash, parts.query)
        if link.tenant != tenant:
            raise not_ours()
        if self._clock.now().timestamp() >= link.expires_at:
            raise Expired("The link to the artifact has expired", {"reason": "artifact_link_expired"})
        return link.sha256

    async def open(self, hash: str, query: str) -> ArtifactLink:
        """The object of a link, by the last part of its path and its query, even if the link has expired.

        Raises `Unauthorized` for one that was not made here.
        """
        found = _QUERY.fullmatch(query)
        if found is None or not _HASH.fullmatch(hash):
            raise not_ours()
        tenant, mime, expires, kid, signature = found.groups()
        link = ArtifactLink(unquote(tenant), hash, unquote(mime), int(expires))
        key = await self._find(kid)
        # An unknown key takes as long as one that is known.
        expected = _signature(key or LinkKey(kid, bytes(32), 0.0), link)
        is_same = hmac.compare_digest(expected, signature)
        if key is None or not is_same or (quote(link.tenant, safe=""), quote(link.mime, safe="")) != (tenant, mime):
            raise not_ours()
        return link

    async def _current(self) -> LinkKey:
        now = self._clock.now().timestamp()
        if not self._known or now - self._known[0].created_at > _NEW_KEY_SECONDS:
            fresh = LinkKey(self._random_bytes(8).hex(), self._random_bytes(32), now)
            oldest_from = await self._purge_clock.now() - _OLD_KEY_SECONDS
            self._known = await self._keys.renew(fresh, now - _NEW_KEY_SECONDS, oldest_from)
        return self._known[0]

    async def _find(self, kid: str) -> LinkKey | None:
        """The key of this name; another process may have made it a moment ago."""
        key = _named(kid, self._known)
        if key is None:
            self._known = await self._keys.all()
            key = _named(kid, self._known)
        return key


def not_ours() -> Unauthorized:
    """The error for any link that gives no access."""
    return Unauthorized("The link is not one of this server's, or was altered", {"reason": "artifact_link"})


def _named(kid: str, keys: list[LinkKey]) -> LinkKey | None:
    return next((key for key in keys if key.kid == kid), None)


def _signature(key: LinkKey, link: ArtifactLink) -> str:
    signed = msgspec.json.encode(("GET", link.tenant, link.sha256, link.mime, link.expires_at))
    return urlsafe_b64encode(hmac.digest(key.secret, signed, hashlib.sha256)).rstrip(b"=").decode()
