"""The two doors of the application: what comes in by either is let in, answered and traced alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import dragoman
from dragoman.access.authenticator import TRUST_SECONDS
from dragoman.edge.asgi import HttpApplication
from dragoman.edge.http import exchange
from dragoman.testing import ManualClock
from tests.support.asgi import Driver
from tests.support.http_wire import INITIALIZE, INITIALIZED, LATEST, Response, message, modern, modern_call, request

TOKEN = "ada-0123456789abcdef"
AUTH = {"auth": {"callers": {"ada": {"token": TOKEN, "scopes": ["tool:*"]}}}}
PAGE = "https://page.example.org"
PAGES = {"http": {"allowed_origins": [PAGE]}}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@dragoman.tool
async def echo(message: str) -> dict[str, str]:
    """Returns the message it was given."""
    return {"message": message}


@dragoman.tool
async def nap(seconds: float) -> float:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return seconds


@dragoman.tool
async def count(to: int, ctx: dragoman.ToolContext) -> int:
    """Says how far it is."""
    for step in range(to):
        ctx.progress(step + 1, to)
    return to


@asynccontextmanager
async def served(settings: Mapping[str, Any] | None = None, **options: Any) -> AsyncIterator[Driver]:
    app = dragoman.http_app([echo, nap, count], settings, allow_unauthenticated=True, **options)
    async with app.lifespan():
        yield Driver(app)


ECHO = modern_call("echo", message="hi")


def counting(headers: Mapping[str, str] | None = None) -> bytes:
    return modern("tools/call", {"name": "count", "arguments": {"to": 2}}, headers, meta={"progressToken": 1})


MODERN: dict[str, bytes] = {
    "a call": ECHO,
    "an unknown tool": modern_call("nothing"),
    "bad arguments": modern_call("echo", message=1),
    "a call that says how far it is": counting(),
    "a list": modern("tools/list"),
    "what the server is": modern("server/discover"),
    "what the kernel answers": modern("prompts/list"),
    "an unknown method": modern("no/such/method"),
    "headers that disagree": modern_call("echo", {"mcp-name": "other"}, message="hi"),
    "another type": modern_call("echo", {"content-type": "text/plain"}, message="hi"),
    "a type with a charset": modern_call("echo", {"content-type": "Application/JSON; charset=utf-8"}, message="hi"),
    "no type": modern_call("echo", {"content-type": None}, message="hi"),
    "nothing acceptable": modern_call("echo", {"accept": "text/html"}, message="hi"),
    "JSON alone": modern_call("echo", {"accept": "application/json"}, message="hi"),
    "a subscription without streams": modern("subscriptions/listen", {}, {"accept": "application/json"}),
    "chunks": modern_call("echo", {"content-length": None, "transfer-encoding": "chunked"}, message="hi"),
    "another host": modern_call("echo", {"host": "evil.example.org"}, message="hi"),
    "a page": modern_call("echo", {"origin": PAGE}, message="hi"),
    "a page of this machine": modern_call("echo", {"origin": "http://localhost:3000"}, message="hi"),
    "a page that is refused": modern_call("echo", {"origin": PAGE, "accept": "text/html"}, message="hi"),
    "a page that reads a stream": counting({"origin": PAGE}),
    "another page": modern_call("echo", {"origin": "https://evil.example.org"}, message="hi"),
    "a doubled header that decides": ECHO.replace(b"\r\n\r\n", b"\r\nhost: 127.0.0.1\r\n\r\n"),
    "a doubled header that decides nothing": ECHO.replace(b"\r\n\r\n", b"\r\nx-a: 1\r\nx-a: 2\r\n\r\n"),
    "a doubled name": ECHO.replace(b"\r\n\r\n", b"\r\nmcp-name: echo\r\n\r\n"),
    "too much of it": request(b"[" * 200_000, {"mcp-protocol-version": "2026-07-28"}),
    "no body": request(b"", {"mcp-protocol-version": "2026-07-28"}),
    "no JSON": request(b"{", {"mcp-protocol-version": "2026-07-28"}),
    "a notification": request(message("notifications/cancelled", {"requestId": 1}), {"mcp-method": "x"}),
    "a notification of an unknown version": request(
        message("notifications/x"), {"mcp-protocol-version": "2030-01-01", "mcp-method": "x"}
    ),
    "an answer to nothing": request({"jsonrpc": "2.0", "id": 1, "result": {}}, {"mcp-method": "x"}),
}
"""Requests that need nothing to be waited for, so that `take` answers them."""


def same(response: Response | None) -> object:
    """What must not differ between the doors: all but correlation ids."""
    assert response is not None
    headers = {name: value for name, value in response.headers.items() if name not in ("content-length", "date")}
    is_stream = headers.get("content-type", "").startswith("text/event-stream")
    messages = response.messages if is_stream else [response.json] if response.body else []
    return response.status, headers, [_without_ids(each) for each in messages]


def _without_ids(said: dict[str, Any]) -> object:
    if "error" in said:
        assert said["error"]["data"].pop("correlationId")
    result = said.get("result", {})
    result.get("_meta", {}).clear()
    if result.get("isError"):
        error = msgspec.json.decode(result["content"][0]["text"])
        result["content"] = {key: value for key, value in error.items() if not key.endswith("Id")}
    return said


@pytest.mark.parametrize("asked", MODERN.values(), ids=MODERN)
async def test_a_request_that_is_given_whole_is_taken_and_answered_as_one_that_comes_by_asgi(asked: bytes) -> None:
    async with served(PAGES) as here:
        assert same(await here.give(asked)) == same(await here.ask(asked))


IN_SESSION: dict[str, Callable[[dict[str, str]], bytes]] = {
    "a call": lambda to: request(message("tools/call", {"name": "echo", "arguments": {"message": "hi"}}, 1), to),
    "a call that becomes a stream": lambda to: request(
        message("tools/call", {"name": "nap", "arguments": {"seconds": 0.2}}, 1), to
    ),
    "a call of a page": lambda to: request(
        message("tools/call", {"name": "echo", "arguments": {"message": "hi"}}, 1), {**to, "origin": PAGE}
    ),
    "a call of a page that becomes a stream": lambda to: request(
        message("tools/call", {"name": "nap", "arguments": {"seconds": 0.2}}, 1), {**to, "origin": PAGE}
    ),
    "an unknown tool": lambda to: request(message("tools/call", {"name": "nothing"}, 1), to),
    "bad params": lambda to: request(message("tools/call", {"name": 1}, 1), to),
    "an unknown method": lambda to: request(message("no/such/method", {}, 1), to),
    "no JSON": lambda to: request(b"{", to),
    "the other era": lambda to: modern_call("echo", {**to, "mcp-protocol-version": LATEST}, message="hi"),
}


@pytest.mark.parametrize("asked", IN_SESSION.values(), ids=IN_SESSION)
async def test_a_request_in_a_session_is_answered_alike_by_both_doors(
    asked: Callable[[dict[str, str]], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "STREAM_AFTER", exchange.WATCH_AFTER)
    answers = []
    async with served(PAGES) as here:
        for ask in (here.give, here.ask):
            opened = await here.ask(request(INITIALIZE))
            session = {"mcp-session-id": opened.headers["mcp-session-id"]}
            assert (await here.ask(request(INITIALIZED, session))).status == 202
            answered = await ask(asked(session))
            assert answered is not None
            if "mcp-session-id" in answered.headers:
                assert answered.headers.pop("mcp-session-id") == session["mcp-session-id"]
            answers.append(same(answered))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "asked", [request(INITIALIZE), request(message("tools/list", {}, 1))], ids=["initialize", "no session"]
)
async def test_a_request_that_the_sdk_answers_has_to_come_by_asgi(asked: bytes) -> None:
    async with served() as here:
        assert await here.give(asked) is None


async def test_a_request_before_the_start_has_to_come_by_asgi() -> None:
    app = dragoman.http_app([echo], allow_unauthenticated=True)
    assert await Driver(app).give(ECHO) is None


async def test_a_caller_whose_token_has_not_been_seen_has_to_come_by_asgi_once() -> None:
    asked, wrong = (modern_call("echo", {"authorization": f"Bearer {token}"}, message="hi") for token in (TOKEN, "x"))
    async with served(AUTH) as here:
        assert await here.give(asked) is None
        assert (await here.ask(asked)).status == 200
        assert same(await here.give(asked)) == same(await here.ask(asked))
        assert (await here.ask(wrong)).status == 401
        assert await here.give(wrong) is None
        assert await here.give(ECHO) is None


async def test_a_caller_is_asked_for_with_every_request_however_often_its_head_has_come() -> None:
    clock = ManualClock()
    asked = modern_call("echo", {"authorization": f"Bearer {TOKEN}"}, message="hi")
    async with served(AUTH, clock=clock) as here:
        assert (await here.ask(asked)).status == 200
        for _ in range(2):
            assert (answered := await here.give(asked)) is not None
            assert answered.status == 200
        clock.advance(TRUST_SECONDS)
        assert await here.give(asked) is None


async def test_the_body_is_held_against_the_headers_however_often_they_have_come() -> None:
    other = ECHO.replace(b'"name":"echo"', b'"name":"nap!"')
    assert other != ECHO
    async with served() as here:
        for asked, status in ((ECHO, 200), (other, 400), (ECHO, 200), (other, 400)):
            assert (answered := await here.give(asked)) is not None
            assert answered.status == status


async def test_a_body_beyond_the_limit_has_to_come_by_asgi_where_its_connection_is_closed() -> None:
    limits = {"limits": {"max_request_bytes": 2000}, "tools": {"max_payload_bytes": 1000}}
    asked = modern_call("echo", message="x" * 3000)
    async with served(limits) as here:
        assert await here.give(asked) is None
        refused = await here.ask(asked)
        assert (refused.status, refused.headers["connection"]) == (413, "close")


async def test_a_page_may_read_the_answer_and_nothing_is_said_of_pages_to_others() -> None:
    async with served(PAGES) as here:
        read = await here.give(modern_call("echo", {"origin": PAGE}, message="hi"))
        other = await here.give(ECHO)
    assert read is not None
    assert other is not None
    assert read.headers["access-control-allow-origin"] == PAGE
    assert (read.headers["vary"], "vary" in other.headers) == ("origin", False)


@pytest.mark.parametrize("is_in_session", [False, True], ids=["modern", "in a session"])
async def test_headers_name_the_trace_of_a_call_that_is_given_whole(is_in_session: bool) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traced = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    async with served(tracer_provider=provider) as here:
        asked, untraced = modern_call("echo", traced, message="hi"), ECHO
        if is_in_session:
            opened = await here.ask(request(INITIALIZE))
            session = {"mcp-session-id": opened.headers["mcp-session-id"]}
            await here.ask(request(INITIALIZED, session))
            body = message("tools/call", {"name": "echo", "arguments": {"message": "hi"}}, 1)
            asked, untraced = request(body, {**session, **traced}), request(body, session)
        for each in (asked, untraced):
            answered = await here.give(each)
            assert answered is not None
            assert answered.status == 200
    first, second = exporter.get_finished_spans()
    assert first.context is not None
    assert first.parent is not None
    assert (f"{first.context.trace_id:032x}", f"{first.parent.span_id:016x}") == (TRACE, PARENT)
    assert second.parent is None  # The trace ended with the request that named it.


async def test_the_application_is_what_the_server_needs() -> None:
    app: HttpApplication = dragoman.http_app([echo], {"http": {"path": "/tools"}}, allow_unauthenticated=True)
    assert (app.endpoint, app.metrics is not None) == ("/tools", True)
