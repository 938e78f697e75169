"""Each call is one span: under the right parent, around its handler, and ended when the handler has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from dragoman import ToolContext, prompt, resource, tool
from dragoman.errors import NotFound
from dragoman.testing import ManualClock, SequentialIds, TestServer, open_server
from dragoman.testing.connection import ENVELOPE
from dragoman.tools.builtin.echo import echo_tool
from tests.support.calls import Held, begin

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
META = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Spans:
    """A provider of OpenTelemetry's SDK whose spans can be looked at."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("handlers")

    @property
    def ended(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.ended if span.name == name]
        return found


@pytest.fixture
def spans() -> Spans:
    return Spans()


def ids(span: ReadableSpan) -> tuple[str, str, str | None]:
    """Trace, span and parent."""
    assert span.context is not None
    parent = None if span.parent is None else f"{span.parent.span_id:016x}"
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}", parent


def failure(span: ReadableSpan) -> tuple[StatusCode, Any, Any, Any]:
    facts = span.attributes or {}
    found = (facts.get(key) for key in ("error.type", "dragoman.outcome", "dragoman.error_code"))
    return span.status.status_code, *found  # type: ignore[return-value]


async def test_a_call_is_a_span_with_the_attributes_of_the_conventions(spans: Spans) -> None:
    async with open_server([echo_tool()], ids=SequentialIds(), tracer_provider=spans.provider) as server:
        client = await server.client()
        await client.answer(begin(client, "echo", arguments={"message": "secret"}, _meta={"correlationId": "mine"}))
    (span,) = spans.ended
    assert (span.name, span.kind, span.parent, span.status.status_code) == (
        "tools/call echo",
        SpanKind.SERVER,
        None,
        StatusCode.UNSET,
    )
    assert dict(span.attributes or {}) == {
        "mcp.method.name": "tools/call",
        "mcp.protocol.version": "2025-11-25",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "echo",
        "jsonrpc.request.id": "2",
        "network.transport": "pipe",
        "dragoman.run_id": "run-1",
        "dragoman.correlation_id": "mine",
        "dragoman.outcome": "success",
    }
    assert "secret" not in span.to_json()


async def test_the_parent_is_the_one_that_meta_names(spans: Spans) -> None:
    async with open_server([echo_tool()], tracer_provider=spans.provider) as server:
        client = await server.client()
        await client.answer(begin(client, "echo", arguments={"message": "x"}, _meta=META))
        modern = server.connect(modern=True)
        await modern.request(
            "tools/call", {"name": "echo", "arguments": {"message": "x"}, "_meta": {**ENVELOPE, **META}}
        )
        records = server.records
    for span, record in zip(spans.ended, records, strict=True):
        trace, own, parent = ids(span)
        assert (trace, parent) == (TRACE, PARENT)
        assert (record["traceId"], record["spanId"]) == (trace, own)
    versions = [(span.attributes or {})["mcp.protocol.version"] for span in spans.ended]
    assert versions == ["2025-11-25", "2026-07-28"]


@pytest.mark.parametrize("parent", [5, None, "nonsense", ["00"], {"a": 1}])
async def test_a_parent_that_is_none_begins_a_trace_and_costs_nothing(parent: Any, spans: Spans) -> None:
    async with open_server([echo_tool()], tracer_provider=spans.provider) as server:
        client = await server.client()
        answer = await client.answer(
            begin(client, "echo", arguments={"message": "x"}, _meta={"traceparent": parent, "tracestate": parent})
        )
    assert answer["result"]["isError"] is False
    assert spans.one("tools/call echo").parent is None


async def test_what_a_handler_does_is_part_of_its_call_on_the_loop_and_on_threads(spans: Spans) -> None:
    @tool
    async def on_the_loop() -> None:
        with spans.tracer.start_as_current_span("on the loop"):
            await asyncio.sleep(0)

    @tool
    def on_a_thread() -> None:
        with spans.tracer.start_as_current_span("on a thread"):
            pass

    async with open_server([on_the_loop, on_a_thread], tracer_provider=spans.provider) as server:
        client = await server.client()
        calls = [begin(client, name, _meta=META) for name in ("on_the_loop", "on_a_thread") for _ in range(3)]
        for call in calls:
            await client.answer(call)
    by_id = {ids(span)[1]: span.name for span in spans.ended}
    for place in ("on the loop", "on a thread"):
        within = [ids(span) for span in spans.ended if span.name == place]
        assert len({parent for _, _, parent in within}) == 3
        assert {trace for trace, _, _ in within} == {TRACE}
        assert {by_id[parent or ""] for _, _, parent in within} == {f"tools/call {place.replace(' ', '_')}"}


async def test_a_call_from_python_is_part_of_what_is_going_on_there(spans: Spans) -> None:
    async with open_server([echo_tool()], tracer_provider=spans.provider) as server:
        with spans.tracer.start_as_current_span("whoever calls") as caller:
            await server.runtime.call("echo", {"message": "x"})
            assert spans.tracer.start_span("next").parent == caller.get_span_context()  # type: ignore[attr-defined]
    assert ids(spans.one("tools/call echo"))[2] == f"{caller.get_span_context().span_id:016x}"


async def test_what_is_going_on_around_a_call_is_linked_when_meta_names_another_parent(spans: Spans) -> None:
    async with open_server([echo_tool()], tracer_provider=spans.provider) as server:
        client = await server.client()
        with spans.tracer.start_as_current_span("POST /mcp") as around:
            await client.answer(begin(client, "echo", arguments={"message": "x"}, _meta=META))
    span = spans.one("tools/call echo")
    assert ids(span)[2] == PARENT
    assert [link.context for link in span.links] == [around.get_span_context()]


@tool
async def fail() -> None:
    raise RuntimeError("out of paper")


@tool
async def refuse() -> None:
    raise NotFound("no such page")


@pytest.mark.parametrize(
    ("name", "arguments", "title", "code"),
    [
        ("fail", {}, "tools/call fail", "INTERNAL"),
        ("refuse", {}, "tools/call refuse", "NOT_FOUND"),
        ("echo", {"message": 5}, "tools/call echo", "INVALID_ARGUMENT"),
        ("prompts/get made up", {}, "tools/call", "NOT_FOUND"),
    ],
)
async def test_an_error_of_the_tool_is_one_of_the_span(
    name: str, arguments: dict[str, Any], title: str, code: str, spans: Spans
) -> None:
    async with open_server([fail, refuse, echo_tool()], tracer_provider=spans.provider) as server:
        client = await server.client()
        await client.answer(begin(client, name, arguments=arguments))
    span = spans.one(title)
    assert failure(span) == (StatusCode.ERROR, "tool_error", "tool_error", code)
    assert (span.attributes or {})["gen_ai.tool.name"] == name
    assert "out of paper" not in span.to_json()


async def test_a_name_of_any_length_is_cut(spans: Spans) -> None:
    async with open_server(tracer_provider=spans.provider) as server:
        client = await server.client()
        await client.answer(begin(client, "x" * 100_000))
    (span,) = spans.ended
    assert span.name == "tools/call"
    assert len(str((span.attributes or {})["gen_ai.tool.name"])) <= 256


async def test_the_span_of_a_late_call_ends_with_its_handler(spans: Spans) -> None:
    held, clock = Held(timeout_ms=50), ManualClock()
    async with open_server([held.tool], clock=clock, tracer_provider=spans.provider) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        clock.advance(0.1)
        await client.answer(call)
        assert spans.ended == ()
        held.release.set()
        await held.ended.wait()
    assert failure(spans.one("tools/call hold")) == (StatusCode.ERROR, "tool_error", "late_completed", None)


async def test_a_call_that_never_ends_is_a_span_all_the_same(spans: Spans) -> None:
    held = Held()
    async with open_server([held.tool], tracer_provider=spans.provider) as server:
        client = await server.client()
        begin(client, "hold")
        await held.begun.wait()
        await server.runtime.stop(0.01)
    assert failure(spans.one("tools/call hold")) == (StatusCode.ERROR, "tool_error", "timeout", None)


@tool
async def patient(context: ToolContext) -> None:
    await context.cancellation.wait()
    context.cancellation.raise_if_set()


async def test_a_call_that_its_client_withdrew_is_aborted(spans: Spans) -> None:
    async with open_server([patient], tracer_provider=spans.provider) as server:
        client = await server.client()
        call = begin(client, "patient")
        await asyncio.sleep(0)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": call}}
        client.send(json.dumps(cancel).encode() + b"\n")
    assert failure(spans.one("tools/call patient"))[:3] == (StatusCode.ERROR, "aborted", "aborted")


@resource("note://{name}")
async def note(name: str) -> str:
    return name


@prompt
async def greet(name: str) -> str:
    return f"Greet {name}"


async def test_what_comes_through_the_kernel_is_one_span_too(spans: Spans) -> None:
    async with open_server([note, greet], tracer_provider=spans.provider) as server:
        client = await server.client()
        await client.request("resources/read", {"uri": "note://a-secret", "_meta": META})
        await client.request("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}, "_meta": META})
        await client.request("prompts/get", {"name": "nobody"})
        await client.request("resources/list")
    read, got, unknown = spans.ended
    assert [span.name for span in spans.ended] == ["resources/read", "prompts/get greet", "prompts/get"]
    assert [ids(span)[2] for span in spans.ended] == [PARENT, PARENT, None]
    assert (read.attributes or {})["mcp.resource.uri"] == "note://{name}"
    assert (got.attributes or {})["gen_ai.prompt.name"] == "greet"
    assert "gen_ai.operation.name" not in (got.attributes or {})
    assert (read.attributes or {})["jsonrpc.request.id"] == "2"
    assert failure(unknown)[0] is StatusCode.ERROR
    assert "a-secret" not in json.dumps([span.to_json() for span in spans.ended])


async def test_a_call_that_is_not_sampled_has_no_ids_in_its_record() -> None:
    spans = Spans(sampler=ALWAYS_OFF)
    async with open_server([echo_tool()], tracer_provider=spans.provider) as server:
        await server.runtime.call("echo", {"message": "x"})
        (record,) = server.records
    assert spans.ended == ()
    assert {"traceId", "spanId"}.isdisjoint(record)


async def test_the_ids_in_a_record_survive_the_way_to_the_log(spans: Spans) -> None:
    async with open_server([echo_tool()], tracer_provider=spans.provider) as server:
        await server.runtime.call("echo", {"message": "x"})
        (line,) = [json.loads(each) for each in server.stderr.splitlines() if b"tool call completed" in each]
    assert (line["traceId"], line["spanId"], None) == ids(spans.one("tools/call echo"))


def _stages(server: TestServer) -> list[str]:
    return [type(stage).__name__ for stage in server.runtime.stages]


async def test_without_spans_there_is_no_stage_for_them(spans: Spans) -> None:
    async with open_server() as without, open_server(tracer_provider=spans.provider) as wanted:
        assert "OpenSpan" not in _stages(without)
        assert _stages(wanted) == ["RecordCompletion", "OpenSpan", *_stages(without)[1:]]
        assert without.runtime.observers == []
