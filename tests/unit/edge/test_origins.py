"""The guard lets in addresses, localhost and what is listed, however it is spelled, and nothing that looks like it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.edge.http.origins import OriginCheck

HOST = b"127.0.0.1:8000"


def status(guard: OriginCheck, host: bytes | None = HOST, origin: bytes | None = None) -> int | None:
    """What a request is refused with, twice: what is remembered must not change the answer."""
    headers = {name: value for name, value in ((b"host", host), (b"origin", origin)) if value is not None}
    first, second = guard.refusal(headers), guard.refusal(headers)
    assert first == second
    return None if first is None else first[0]


@pytest.mark.parametrize(
    "host",
    [
        b"127.0.0.1",
        b"127.0.0.1:8000",
        b"localhost",
        b"LocalHost:80",
        b"[::1]",
        b"[::1]:8000",
        b"[2001:DB8::1]:443",
        b"192.168.1.5:8000",
        b"0.0.0.0:8000",
    ],
)
def test_addresses_and_localhost_are_served(host: bytes) -> None:
    assert status(OriginCheck(), host) is None


@pytest.mark.parametrize(
    "host",
    [
        None,
        b"",
        b":8000",
        b"evil.example.org",
        b"localhost.evil.example.org",
        b"localhost.",
        b"127.0.0.1.evil.example.org",
        b"127.0.0.1.",
        b"127.1",
        b"2130706433",
        b"0x7f.0.0.1",
        b"0177.0.0.1",
        b"::1",
        b"[::1",
        b"[::1]evil.example.org",
        b"[localhost]",
        b"[127.0.0.1]",
        b"[::1]:",
        b"[::1%lo]",
        b"localhost@evil.example.org",
        b"evil.example.org@localhost",
        b"@localhost",
        b"user:password@localhost:80",
        b"localhost:port",
        b"localhost:99999",
        b"localhost:-1",
        b"localhost/evil.example.org",
        b"localhost#evil.example.org",
        b"localhost?evil.example.org",
        b"localhost\\evil.example.org",
        b"localhost,evil.example.org",
        b"localhost evil.example.org",
        b"local\thost",
        b"\xffocalhost",
        "ｌocalhost".encode(),
    ],
)
def test_other_hosts_are_misdirected(host: bytes | None) -> None:
    assert status(OriginCheck(), host) == 421


def test_a_listed_host_is_served_on_any_port_and_in_any_case_and_no_other_is() -> None:
    guard = OriginCheck(hosts=["Tools.Example.org", "exact.example.org:444"])
    for host in (b"tools.example.org", b"TOOLS.example.ORG:8443", b"exact.example.org:444"):
        assert status(guard, host) is None
    for host in (
        b"example.org",
        b"x.tools.example.org",
        b"tools.example.org.",
        b"tools.example.org@evil.example.org",
        b"exact.example.org",
        b"exact.example.org:445",
    ):
        assert status(guard, host) == 421


def test_a_star_allows_any_host_and_any_origin() -> None:
    guard = OriginCheck(hosts=["*"], origins=["*"])
    assert status(guard, b"anything at all", b"null") is None
    assert status(OriginCheck(hosts=["*"]), b"anything.example.org", b"https://evil.example.org") == 403


@pytest.mark.parametrize(
    "origin",
    [
        b"http://localhost",
        b"http://localhost:3000",
        b"https://LOCALHOST",
        b"http://127.0.0.1:9",
        b"http://127.8.8.8",
        b"http://[::1]:9",
        b"https://app.example.org",
        b"HTTPS://App.Example.org/",
        b"vscode-webview://panel",
    ],
)
def test_pages_of_this_machine_and_listed_ones_may_call(origin: bytes) -> None:
    guard = OriginCheck(origins=["https://app.example.org", "vscode-webview://panel"])
    assert status(guard, origin=origin) is None


@pytest.mark.parametrize(
    "origin",
    [
        b"",
        b"null",
        b"*",
        b"https://evil.example.org",
        b"http://app.example.org",
        b"https://app.example.org:444",
        b"https://app.example.org.evil.example.org",
        b"https://x.app.example.org",
        b"http://localhost.evil.example.org",
        b"http://localhost.",
        b"http://localhost@evil.example.org",
        b"http://evil.example.org@localhost",
        b"http://evil.example.org#localhost",
        b"http://localhost/page",
        b"http://localhost:port",
        b"http://192.168.1.5:8000",
        b"http://[::1",
        b"//localhost",
        b"localhost",
        b"file://localhost",
        b"javascript://localhost",
        b"http://localhost, https://evil.example.org",
        b"http://local\thost",
    ],
)
def test_other_pages_may_not(origin: bytes) -> None:
    guard = OriginCheck(origins=["https://app.example.org"])
    assert status(guard, origin=origin) == 403


def test_a_page_that_this_server_itself_serves_may_call_it() -> None:
    guard = OriginCheck(hosts=["tools.example.org"])
    assert status(guard, b"192.168.1.5:8000", b"http://192.168.1.5:8000") is None
    assert status(guard, b"tools.example.org", b"https://tools.example.org") is None
    assert status(guard, b"192.168.1.5:8000", b"http://192.168.1.5:9000") == 403
    assert status(guard, b"192.168.1.5:8000", b"http://192.168.1.6:8000") == 403


def test_a_name_that_was_made_to_point_here_does_not_help_its_page() -> None:
    assert status(OriginCheck(), b"rebound.example.org", b"http://rebound.example.org") == 421


def test_what_is_remembered_is_bounded() -> None:
    guard = OriginCheck()
    for number in range(5000):
        assert status(guard, b"127.0.0.1:%d" % number, b"http://localhost:%d" % number) is None
    listed = "https://" + "a" * 1000
    assert status(OriginCheck(origins=[listed]), origin=listed.encode()) is None
    assert len(guard.let_in) <= 1024
    assert status(guard, b"evil.example.org") == 421


def test_a_reason_is_short_and_printable() -> None:
    refusal = OriginCheck().refusal({b"host": b"\x80\r\n" + b"x" * 100_000})
    assert refusal is not None
    assert len(refusal[1]) < 400
    assert refusal[1].isprintable()


@given(host=st.binary(max_size=40), origin=st.none() | st.binary(max_size=40))
def test_nothing_makes_it_fail(host: bytes, origin: bytes | None) -> None:
    assert status(OriginCheck(["tools.example.org"], ["https://app.example.org"]), host, origin) in (None, 403, 421)


@given(prefix=st.text("ab.@:/#?[]\\ ", max_size=5), suffix=st.text("ab.@:/#?[]\\ ", min_size=1, max_size=5))
def test_no_decoration_turns_a_foreign_host_into_ours(prefix: str, suffix: str) -> None:
    for host in (f"{prefix}evil.org{suffix}localhost", f"localhost{suffix}evil.org"):
        assert status(OriginCheck(), host.encode()) == 421
        assert status(OriginCheck(), origin=f"http://{host}".encode()) == 403
