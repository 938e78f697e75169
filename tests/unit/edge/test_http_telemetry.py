"""Over HTTP: who sees the metrics, what they say while calls run, and which trace a request belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families as parse

import dragoman
from dragoman import ToolContext, tool
from dragoman.edge.http.app import HttpApp
from dragoman.testing.connection import CLIENT_INFO, ENVELOPE

JSON = {"accept": "application/json, text/event-stream"}
HANDSHAKE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT_INFO}
OPERATOR, SCRAPER, ANALYST = (f"{name}-0123456789abcdef" for name in ("operator", "scraper", "analyst"))
AUTH = {
    "callers": {
        "operator": {"token": OPERATOR},
        "scraper": {"token": SCRAPER, "scopes": ["metrics"]},
        "analyst": {"token": ANALYST, "scopes": ["tool:*"]},
    }
}


@asynccontextmanager
async def served(app: HttpApp) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=app)
    async with app.lifespan(), httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@asynccontextmanager
async def serving(tools: Any = (), config: Any = None, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    async with served(dragoman.http_app(tools, config, allow_unauthenticated=True, **options)) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def message(method: str, params: Any = None, request_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}


async def call(client: httpx2.AsyncClient, name: str, arguments: Any = None, **headers: str) -> httpx2.Response:
    """A call of the modern era."""
    params = {"name": name, "arguments": arguments or {}, "_meta": ENVELOPE}
    modern = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name}
    return await client.post("/mcp", headers={**JSON, **modern, **headers}, json=message("tools/call", params))


async def open_session(client: httpx2.AsyncClient) -> dict[str, str]:
    """The headers of a handshake session that has begun."""
    opened = await client.post("/mcp", headers=JSON, json=message("initialize", HANDSHAKE))
    headers = {**JSON, "mcp-session-id": opened.headers["mcp-session-id"]}
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    await client.post("/mcp", headers=headers, json=notification)
    return headers


def values(page: httpx2.Response, name: str) -> dict[tuple[str, ...], float]:
    assert page.status_code == 200, page.text
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in parse(page.text)
        for sample in family.samples
        if sample.name == name
    }


@tool
async def add(a: int, b: int) -> int:
    return a + b


async def test_a_scrape_while_calls_run_sees_them_in_flight_and_then_counted() -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        begun.set()
        await release.wait()

    async with serving([add, wait]) as client:
        waiting = asyncio.create_task(call(client, "wait"))
        await begun.wait()
        await call(client, "add", {"a": 1, "b": 2})
        during = await client.get("/metrics")
        release.set()
        await waiting
        await open_session(client)
        after = await client.get("/metrics")
    assert during.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert values(during, "dragoman_calls_total") == {("success", "add"): 1}
    assert [values(during, f"dragoman_{name}") for name in ("calls_in_flight", "slots_in_use")] == [{(): 1}, {(): 1}]
    assert values(after, "dragoman_calls_total") == {("success", "add"): 1, ("success", "wait"): 1}
    assert [values(after, f"dragoman_{name}") for name in ("calls_in_flight", "sessions")] == [{(): 0}, {(): 1}]


async def test_prometheus_gets_open_metrics_when_it_asks() -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4"
    async with serving() as client:
        page = await client.get("/metrics", headers={"accept": accept})
    assert page.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert page.text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (bearer("somebody-else-entirely"), 401),
        (bearer(ANALYST), 403),
        (bearer(SCRAPER), 200),
        (bearer(OPERATOR), 200),
    ],
)
async def test_metrics_are_for_whoever_the_endpoint_knows_and_not_for_the_scopes_of_tools(
    headers: dict[str, str], status: int
) -> None:
    async with serving([add], {"auth": AUTH}) as client:
        page = await client.get("/metrics", headers=headers)
        later = await client.get("/metrics", headers=bearer(OPERATOR))
    assert page.status_code == status
    assert ("dragoman_" in page.text) is (status == 200)
    if status == 403:
        assert page.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="metrics"'
    assert values(later, "dragoman_http_refusals_total") == ({} if status == 200 else {(str(status),): 1})


async def test_a_token_for_scraping_calls_nothing() -> None:
    async with serving([add], {"auth": AUTH}) as client:
        answer = await call(client, "add", {"a": 1, "b": 2}, **bearer(SCRAPER))
    assert answer.json()["result"]["isError"] is True


async def test_the_page_is_read_and_nothing_else_and_only_under_a_name_of_the_server() -> None:
    async with serving() as client:
        assert (await client.post("/metrics")).status_code == 405
        assert (await client.get("/metrics", headers={"host": "evil.example"})).status_code in (403, 421)
        assert (await client.get("/metrics", headers={"origin": "https://evil.example"})).status_code == 403
        counted = values(await client.get("/metrics"), "dragoman_http_refusals_total")
    assert sum(counted.values()) == 3


async def test_there_is_no_page_when_metrics_are_off() -> None:
    async with serving([add], {"http": {"metrics": False}}) as client:
        assert (await client.get("/metrics")).status_code == 404
        assert (await call(client, "add", {"a": 1, "b": 2})).status_code == 200


# Traces.

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OTHER_TRACE = "a" * 32
HEADER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
OTHER_HEADER = {"traceparent": f"00-{OTHER_TRACE}-{PARENT}-01"}


class Traced:
    """An application with spans, and tools that take each of the ways through it."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        tracer = self.provider.get_tracer("handlers")

        @tool
        async def plain() -> None:
            """Is answered by the lane."""
            with tracer.start_as_current_span("within"):
                pass

        @tool
        async def with_context(context: ToolContext) -> None:
            """Goes through the kernel in sessions: it may need a way back."""
            with tracer.start_as_current_span("within"):
                context.progress(1, 2)

        self.tools = [plain, with_context]

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def pair(self, name: str) -> tuple[ReadableSpan, ReadableSpan]:
        """The one span of the call, and the one within it; there are no others."""
        within, around = self.spans
        assert (within.name, around.name) == ("within", f"tools/call {name}")
        assert within.parent == around.context
        return around, within


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


@pytest.mark.parametrize("name", ["plain", "with_context"])
async def test_headers_name_the_parent_of_a_modern_call(name: str) -> None:
    traced = Traced()
    async with serving(traced.tools, tracer_provider=traced.provider) as client:
        await call(client, name, **HEADER)
    around, within = traced.pair(name)
    assert around.parent is not None
    assert (trace_of(around), f"{around.parent.span_id:016x}", trace_of(within)) == (TRACE, PARENT, TRACE)
    facts = around.attributes or {}
    assert (facts["network.transport"], facts["network.protocol.name"]) == ("tcp", "http")
    assert facts["mcp.protocol.version"] == "2026-07-28"
    assert "mcp.session.id" not in facts


@pytest.mark.parametrize("meta", [{}, HEADER])
@pytest.mark.parametrize("name", ["plain", "with_context"])
async def test_a_call_in_a_session_is_one_span_whichever_way_it_takes(name: str, meta: dict[str, str]) -> None:
    traced = Traced()
    async with serving(traced.tools, tracer_provider=traced.provider) as client:
        session = await open_session(client)
        params = {"name": name, "arguments": {}, "_meta": meta}
        await client.post("/mcp", headers={**session, **OTHER_HEADER}, json=message("tools/call", params, "mine"))
    around, _ = traced.pair(name)
    assert trace_of(around) == (TRACE if meta else OTHER_TRACE)
    assert [f"{link.context.trace_id:032x}" for link in around.links] == ([OTHER_TRACE] if meta else [])
    facts = around.attributes or {}
    assert facts["mcp.session.id"] == session["mcp-session-id"]
    assert (facts["mcp.protocol.version"], facts["jsonrpc.request.id"]) == ("2025-11-25", "mine")


async def test_requests_of_one_session_do_not_share_a_trace() -> None:
    traced = Traced()
    async with serving(traced.tools, tracer_provider=traced.provider) as client:
        session = await open_session(client)
        for number, header in enumerate((HEADER, OTHER_HEADER, {})):
            params = {"name": "with_context", "arguments": {}}
            await client.post("/mcp", headers={**session, **header}, json=message("tools/call", params, number))
    first, second, third = (span for span in traced.spans if span.name != "within")
    assert (trace_of(first), trace_of(second)) == (TRACE, OTHER_TRACE)
    assert third.parent is None


async def test_the_span_of_the_application_that_it_is_mounted_in_is_the_parent() -> None:
    traced = Traced()
    tracer = traced.provider.get_tracer("host")
    app = dragoman.http_app(traced.tools, allow_unauthenticated=True, tracer_provider=traced.provider)

    async with app.lifespan():

        async def host(scope: Any, receive: Any, send: Any) -> None:
            with tracer.start_as_current_span("POST"):
                await app(scope, receive, send)

        transport = httpx2.ASGITransport(app=host)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await call(client, "plain", **HEADER)
    _, around, post = traced.spans
    assert around.parent == post.context


@pytest.mark.parametrize("value", ["", "00", "00-\xff", "x" * 10_000])
async def test_headers_that_name_no_trace_cost_nothing(value: str) -> None:
    traced = Traced()
    async with serving(traced.tools, tracer_provider=traced.provider) as client:
        params = {"name": "plain", "arguments": {}, "_meta": ENVELOPE}
        modern = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "plain"}
        headers = [(key, each.encode("latin-1")) for key, each in {**JSON, **modern, "traceparent": value}.items()]
        answer = await client.post("/mcp", headers=headers, json=message("tools/call", params))
    assert answer.status_code == 200
    assert traced.pair("plain")[0].parent is None
