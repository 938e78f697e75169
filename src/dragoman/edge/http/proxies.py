"""The addresses of clients behind proxies, and the proxies that are trusted to tell them.

`X-Forwarded-For` and `X-Forwarded-Proto` are anybody's to write. They count only on a connection from an address in
`http.trusted_proxies`, and of a list of addresses the last one counts that is not such a proxy's.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address, ip_network

from dragoman.edge.asgi import Header
from dragoman.process.address import is_address

UNIX = "unix"
"""Stands for every client of a Unix socket."""


class TrustedProxies:
    """Addresses, networks such as `10.0.0.0/8`, and `unix`. Raises `ValueError` for anything else."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        given = set(names)
        self._takes_unix = UNIX in given
        self._networks = [ip_network(name) for name in given - {UNIX}]

    def seen_through(
        self, headers: Iterable[Header], peer: tuple[str, int] | None
    ) -> tuple[tuple[str, int] | None, str]:
        """The address and the scheme of the client behind a connection from `peer`, which is None on a Unix socket."""
        if not (self._takes_unix if peer is None else self._trusts(peer[0])):
            return peer, "http"
        said = _last_values(headers)
        client = peer
        for name in reversed([each.strip() for each in said.get(b"x-forwarded-for", "").split(",")]):
            if not is_address(name):
                break
            client = (name, 0)
            if not self._trusts(name):
                break
        scheme = said.get(b"x-forwarded-proto", "").rpartition(",")[2].strip().lower()
        return client, scheme if scheme in ("http", "https") else "http"

    def _trusts(self, name: str) -> bool:
        address = ip_address(name)
        if isinstance(address, IPv6Address):  # A socket for both families has `::ffff:10.0.0.1` for `10.0.0.1`.
            address = address.ipv4_mapped or address
        return any(address in network for network in self._networks)


def _last_values(headers: Iterable[Header]) -> dict[bytes, str]:
    said: dict[bytes, str] = {}
    for name, value in headers:
        if name in (b"x-forwarded-for", b"x-forwarded-proto"):
            text = value.decode("latin-1")
            said[name] = f"{said[name]},{text}" if name in said else text
    return said
