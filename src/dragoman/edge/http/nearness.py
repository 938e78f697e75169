"""Which requests come from the owner of the data directory, on a server that authenticates nobody.

1. An address makes no owner: behind a proxy on this machine, every client in the world has an address of this machine,
   and nginx's plain `proxy_pass` adds no header that says so. The owner brings the secret of the data directory as a
   bearer token, unless `auth.local_owner` says that everybody who reaches the address is the owner.
2. A request that came through a proxy, as its headers say, is not the owner's, whatever it brings.
3. No request is where others can reach the server itself, or where its settings say that it is behind a proxy.
"""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest

from dragoman.access.callers import ANONYMOUS, LOCAL, Caller
from dragoman.edge.asgi import Headers

_PASSED_ON = (b"x-forwarded-", b"forwarded", b"via", b"x-real-ip")
"""How the names of headers begin that proxies add."""


class Nearness:
    """Without a way to find the secret, and without `trusts_all`, no request is the owner's."""

    def __init__(self, find_secret: Callable[[], str] | None = None, *, trusts_all: bool = False) -> None:
        self._find_secret = find_secret
        self._trusts_all = trusts_all
        self._is_listening = False
        self.secret: str | None = None
        """What clients of the owner bring; None where it makes nobody the owner."""

    def listens(self, *, is_near: bool) -> None:
        """Be told whether only this machine can reach the server. Raises `ConfigError` for a secret that is no good."""
        self._is_listening = is_near
        if is_near and self._find_secret is not None:
            self.secret = self._find_secret()

    def caller_of(self, headers: Headers) -> Caller:
        """`LOCAL` for a request of the owner, and `ANONYMOUS` for any other."""
        is_possible = self._is_listening and (self._trusts_all or self.secret is not None)
        if not is_possible or any(name.startswith(_PASSED_ON) for name in headers):
            return ANONYMOUS
        return LOCAL if self._trusts_all or self._is_brought(headers) else ANONYMOUS

    def _is_brought(self, headers: Headers) -> bool:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        secret = (self.secret or "").encode()
        return scheme.lower() == b"bearer" and compare_digest(token.strip(b" "), secret)
