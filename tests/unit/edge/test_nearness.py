"""Whether only this machine can call a server, and which requests are its owner's."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.access.callers import ANONYMOUS, LOCAL
from dragoman.edge.http.listening import is_near
from dragoman.edge.http.nearness import Nearness
from dragoman.edge.settings import HttpConfig

PASSED_ON = (b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-anything", b"forwarded", b"via", b"x-real-ip")


@pytest.mark.parametrize(
    ("http", "expected"),
    [
        (HttpConfig(), True),
        (HttpConfig(host="localhost"), True),
        (HttpConfig(host="::1"), True),
        (HttpConfig(host="0.0.0.0"), False),
        (HttpConfig(host="192.0.2.1"), False),
        (HttpConfig(uds="/run/dragoman.sock"), False),
        (HttpConfig(allowed_hosts=("docs.example",)), False),
        (HttpConfig(trusted_proxies=("127.0.0.1",)), False),
    ],
)
def test_a_server_that_a_proxy_may_stand_before_is_not_near(http: HttpConfig, expected: bool) -> None:
    assert is_near(http) is expected


SECRET = "s" * 43
BROUGHT = {b"authorization": b"Bearer " + SECRET.encode()}


def nearness(*, is_near: bool = True, **options: Any) -> Nearness:
    made = Nearness(lambda: SECRET, **options)
    made.listens(is_near=is_near)
    return made


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"authorization": b"Bearer " + b"t" * 43},
        {b"authorization": SECRET.encode()},
        {b"authorization": b"Basic " + SECRET.encode()},
        {b"authorization": b"Bearer "},
        {b"cookie": BROUGHT[b"authorization"]},
        *({**BROUGHT, name: b"192.0.2.1"} for name in PASSED_ON),
    ],
)
def test_a_request_without_the_secret_or_from_a_proxy_is_not_the_owners(headers: dict[bytes, bytes]) -> None:
    assert nearness().caller_of(headers) is ANONYMOUS


def test_the_secret_makes_an_owner_only_where_others_cannot_connect() -> None:
    assert nearness().caller_of(BROUGHT) is LOCAL
    assert nearness(is_near=False).caller_of(BROUGHT) is ANONYMOUS
    assert Nearness(lambda: SECRET).caller_of(BROUGHT) is ANONYMOUS, "in an application that serves it elsewhere"
    assert Nearness().caller_of({b"authorization": b"Bearer "}) is ANONYMOUS


@pytest.mark.parametrize("headers", [{}, BROUGHT, *({name: b"x"} for name in PASSED_ON)])
def test_where_everybody_is_trusted_proxies_are_not(headers: dict[bytes, bytes]) -> None:
    trusting = Nearness(trusts_all=True)
    assert trusting.caller_of(headers) is ANONYMOUS
    trusting.listens(is_near=True)
    assert trusting.caller_of(headers) is (LOCAL if headers in ({}, BROUGHT) else ANONYMOUS)
