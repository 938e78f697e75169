"""One caller cannot take everything that there is for all of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.http_process import HttpProcess
from tests.support.http_wire import INITIALIZE, Response, request
from tests.support.served import TOOLS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ADA, BOB = ({"authorization": f"Bearer {name}-has-a-long-token"} for name in ("ada", "bob"))
CALLERS = {name: {"token": f"{name}-has-a-long-token"} for name in ("ada", "bob")}
SETTINGS: dict[str, Any] = {"auth.callers": json.dumps(CALLERS), "http.max_sessions": 4}
REFUSAL = {
    "code": -32603,
    "message": "Too many open sessions of this caller",
    "data": {"reason": "too_many_sessions", "limit": 2, "retryable": True},
}


def told(response: Response) -> dict[str, Any]:
    """The error in an answer, without its correlation id."""
    error = response.error
    del error["data"]["correlationId"]
    return error


@pytest.mark.parametrize("more", [{}, {"http.max_sessions": 100, "http.max_sessions_per_caller": 2}])
def test_one_caller_has_a_share_of_the_sessions_and_gets_back_what_it_ends(more: dict[str, Any]) -> None:
    with HttpProcess(TOOLS, settings={**SETTINGS, **more}) as server:
        first, _ = server.open(ADA), server.open(ADA)
        refused = server.ask(request(INITIALIZE, ADA))
        assert (refused.status, refused.headers["retry-after"], told(refused)) == (503, "1", REFUSAL)
        server.open(BOB)
        assert first.delete().status == 200
        server.open(ADA)
        assert server.ask(request(INITIALIZE, ADA)).status == 503
        failed = request(INITIALIZE, {**BOB, "accept": "application/json"})
        assert [server.ask(failed).status for _ in range(5)] == [406] * 5
        server.open(BOB)


def test_sessions_that_time_out_or_whose_stream_breaks_are_given_back() -> None:
    settings = {**SETTINGS, "http.session_idle_ms": 1000}
    stream = request(None, {"accept": "text/event-stream", **ADA}, method="GET", path="/sse")
    with HttpProcess(TOOLS, transport="sse", settings=settings) as server:
        server.open(ADA)
        with server.wire() as wire:
            wire.send(stream)
            assert wire.head()[0] == 200
            for asked in (stream, request(INITIALIZE, ADA)):
                refused = server.ask(asked)
                assert (refused.status, told(refused)) == (503, REFUSAL)
        wait_until(lambda: _can_open_two(server))


def _can_open_two(server: HttpProcess) -> bool:
    """Whether there is room for two sessions; those that are opened to find out are ended again."""
    opened = [server.ask(request(INITIALIZE, ADA)) for _ in range(2)]
    for each in opened:
        if each.status == 200:
            headers = {**ADA, "mcp-session-id": each.headers["mcp-session-id"]}
            assert server.ask(request(None, headers, method="DELETE")).status == 200
    return all(each.status == 200 for each in opened)


def test_without_authentication_every_session_may_be_one_client_s() -> None:
    with HttpProcess(TOOLS, settings={"http.max_sessions": 2, "http.max_sessions_per_caller": 1}) as server:
        server.open()
        server.open()
        refused = server.ask(request(INITIALIZE))
        assert (refused.status, refused.error["message"]) == (503, "Too many open sessions")
