"""Streams that outlive their token, and subscriptions beyond a caller's scopes, on real servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import worker_processes as worker_servers
from tests.support.answers import text_in
from tests.support.http_process import HttpProcess, HttpSession
from tests.support.http_wire import Response, Wire, message, modern, request
from tests.support.issuer import Issuer, serve_issuer
from tests.support.tokens import AUDIENCE, EC, mint

pytestmark = pytest.mark.slow

WATCHED = "test://watched"
NEEDED = f"tool:resources/read {WATCHED}"
READ = "tool:resources/read*"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with serve_issuer() as issuer:
        issuer.publish(EC)
        yield issuer


def serve(issuer: Issuer, **options: Any) -> HttpProcess:
    settings = {"auth.issuer": issuer.url, "auth.resource": AUDIENCE, "server.shutdown_timeout_ms": 200}
    return HttpProcess(worker_servers.TOOLS, settings=settings, **options)


def token(issuer: Issuer, seconds: int, scope: str = "tool:*") -> dict[str, str | None]:
    """A header for so many seconds, one less at times."""
    made = mint({"iss": issuer.url, "exp": int(time.time()) + seconds, "scope": scope})
    return {"authorization": f"Bearer {made}"}


def stream(port: int, data: bytes) -> Response:
    """A response to its very end, which must come in order."""
    with Wire(port) as wire:
        return wire.ask(data)


def call_of(name: str, id: int, **arguments: Any) -> dict[str, Any]:
    return message("tools/call", {"name": name, "arguments": arguments, "_meta": {"progressToken": id}}, id)


def test_every_stream_ends_when_its_token_does(issuer: Issuer) -> None:
    with serve(issuer) as server:
        session = server.open(token(issuer, 300))
        short = token(issuer, 3)
        slow = message("tools/call", {"name": "slow", "arguments": {"ms": 60_000, "word": "x"}}, 11)
        calling = {"name": "steps", "arguments": {"count": 2000, "ms": 100}}
        streams: list[Callable[[], Response]] = [
            lambda: stream(server.port, modern("subscriptions/listen", {"notifications": {}}, short)),
            lambda: stream(server.port, modern("tools/call", calling, short, meta={"progressToken": 1})),
            lambda: stream(server.port, session.request(None, short, method="GET")),
            lambda: stream(server.port, session.request(slow, short)),
            lambda: stream(server.port, session.request(call_of("steps", 12, count=2000, ms=100), short)),
        ]
        with ThreadPoolExecutor(len(streams)) as pool:
            listen, modern_call, own, in_lane, in_session = pool.map(lambda each: each(), streams)
        for each in (listen, modern_call, own, in_lane, in_session):
            assert each.status == 200
            assert each.headers["content-type"].startswith("text/event-stream")
            assert not any("result" in said for said in each.messages)
        assert {said["method"] for said in modern_call.messages} == {"notifications/progress"}
        refused = server.ask(modern("tools/list", {}, token(issuer, -31)))
        assert refused.status == 401
        assert text_in(session.call("where", id=13))["isOwner"] is True  # The session itself goes on.


def test_a_stream_of_the_deprecated_transport_ends_when_its_token_does(issuer: Issuer) -> None:
    with serve(issuer, transport="sse") as server:
        opened = stream(server.port, request(None, token(issuer, 3), method="GET", path="/sse"))
        assert opened.status == 200
        assert b"/messages/" in opened.body


def test_a_token_within_the_leeway_has_what_is_left_of_it(issuer: Issuer) -> None:
    with serve(issuer) as server:
        assert server.ask(modern("tools/list", {}, token(issuer, 300))).status == 200  # The keys have been fetched.
        listening = modern("subscriptions/listen", {"notifications": {}}, token(issuer, -26))
        opened = stream(server.port, listening)
        assert opened.messages[0]["method"] == "notifications/subscriptions/acknowledged"


def subscribe(session: HttpSession, id: int) -> Response:
    return session.post(message("resources/subscribe", {"uri": WATCHED}, id))


def test_a_resource_that_a_caller_may_not_read_is_not_watched_either(issuer: Issuer) -> None:
    with serve(issuer) as server:
        sessions = {scope: server.open(token(issuer, 300, f"tool:touch {scope}")) for scope in ("tool:other", READ)}
        refused = subscribe(sessions["tool:other"], 2)
        read = sessions["tool:other"].post(message("resources/read", {"uri": WATCHED}, 3))
        assert refused.error["message"] == read.error["message"] == f"The scope {NEEDED} is needed"
        assert subscribe(sessions[READ], 2).message["result"] == {}


def test_a_stream_tells_only_of_resources_that_its_caller_may_read(issuer: Issuer) -> None:
    listening = {"notifications": {"resourceSubscriptions": [WATCHED], "toolsListChanged": True}}
    with serve(issuer) as server, server.wire() as blind, server.wire() as seeing:
        heard: list[list[bytes]] = []
        for wire, scope in ((blind, "tool:touch"), (seeing, f"tool:touch {READ}")):
            wire.send(modern("subscriptions/listen", listening, token(issuer, 300, scope)))
            assert wire.head()[0] == 200
            heard.append([wire.chunk()])
        assert [WATCHED.encode() in each[0] for each in heard] == [False, True]
        assert server.ask(modern_touch(issuer)).status == 200
        assert b"notifications/resources/updated" in seeing.chunk()
        server.signal(15)
        rest = b"".join(iter(blind.chunk, b""))
        assert b"notifications/resources/updated" not in rest


def modern_touch(issuer: Issuer) -> bytes:
    params = {"name": "touch", "arguments": {"uri": WATCHED}}
    return modern("tools/call", params, token(issuer, 300, "tool:touch"))
