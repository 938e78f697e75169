"""What is believed of what proxies say about their clients."""

from __future__ import annotations

import pytest

from dragoman.config import make_config
from dragoman.edge.http.proxies import TrustedProxies
from dragoman.errors import ConfigError

PROXY = ("10.0.0.1", 4000)
STRANGER = ("203.0.113.9", 4000)
SAID = [(b"x-forwarded-for", b"198.51.100.7"), (b"x-forwarded-proto", b"https")]


@pytest.mark.parametrize(
    ("trusted", "peer", "headers", "seen"),
    [
        ([], PROXY, SAID, (PROXY, "http")),
        ([], None, SAID, (None, "http")),
        (["10.0.0.1"], STRANGER, SAID, (STRANGER, "http")),
        (["unix"], STRANGER, SAID, (STRANGER, "http")),
        (["10.0.0.1"], None, SAID, (None, "http")),
        (["10.0.0.1"], PROXY, SAID, (("198.51.100.7", 0), "https")),
        (["10.0.0.0/8"], PROXY, SAID, (("198.51.100.7", 0), "https")),
        (["unix"], None, SAID, (("198.51.100.7", 0), "https")),
        (["::1"], ("::1", 1), SAID, (("198.51.100.7", 0), "https")),
        # An address of IPv4, as a socket for both families has it.
        (["10.0.0.1"], ("::ffff:10.0.0.1", 1), SAID, (("198.51.100.7", 0), "https")),
        (["10.0.0.1"], PROXY, [], (PROXY, "http")),
        # The client writes what it likes: only what the nearest proxy has added is known to be so.
        (["10.0.0.1"], PROXY, [(b"x-forwarded-for", b"1.1.1.1, 198.51.100.7")], (("198.51.100.7", 0), "http")),
        (
            ["10.0.0.1"],
            PROXY,
            [(b"x-forwarded-for", b"1.1.1.1"), (b"x-forwarded-for", b"198.51.100.7")],
            (("198.51.100.7", 0), "http"),
        ),
        (["10.0.0.0/8"], PROXY, [(b"x-forwarded-for", b"198.51.100.7, 10.0.0.2")], (("198.51.100.7", 0), "http")),
        (["10.0.0.0/8"], PROXY, [(b"x-forwarded-for", b"10.0.0.3, 10.0.0.2")], (("10.0.0.3", 0), "http")),
        (["10.0.0.0/8"], PROXY, [(b"x-forwarded-for", b"unknown, 10.0.0.2")], (("10.0.0.2", 0), "http")),
        (["10.0.0.1"], PROXY, [(b"x-forwarded-for", b"\xff, ,")], (PROXY, "http")),
        (["10.0.0.1"], PROXY, [(b"x-forwarded-proto", b"https, HTTP")], (PROXY, "http")),
        (["10.0.0.1"], PROXY, [(b"x-forwarded-proto", b"javascript")], (PROXY, "http")),
    ],
)
def test_only_trusted_proxies_are_believed_and_only_about_their_own_clients(
    trusted: list[str],
    peer: tuple[str, int] | None,
    headers: list[tuple[bytes, bytes]],
    seen: tuple[tuple[str, int] | None, str],
) -> None:
    assert TrustedProxies(trusted).seen_through(headers, peer) == seen


@pytest.mark.parametrize("name", ["proxy.example.org", "10.0.0.1/8", "", "*"])
def test_what_is_neither_an_address_nor_a_network_is_refused_with_the_settings(name: str) -> None:
    with pytest.raises(ConfigError, match="trusted_proxies"):
        make_config({"http": {"trusted_proxies": [name]}})
