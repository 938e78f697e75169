"""Whether only this machine can call a server."""

from __future__ import annotations

import pytest

from dragoman.edge.http.listening import is_near
from dragoman.edge.settings import HttpConfig


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
