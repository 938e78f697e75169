"""Metrics: every call counted once, in as many series as there are tools, and worded so that Prometheus can read it."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from msgspec import Struct
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse

import dragoman
from dragoman import AgentContext, AgentMessage, Caller, ToolContext, __version__, agent, resource, tool
from dragoman.cache.bounded import BoundedCache
from dragoman.config import make_config
from dragoman.errors import NotFound
from dragoman.telemetry.figures import OTHER
from dragoman.telemetry.log import CompletionRecord
from dragoman.telemetry.metrics import BOUNDS_MS, MOST_REASONS, MOST_TOOLS, Levels, Metrics, Snapshot
from dragoman.testing import ManualClock, open_server
from tests.support.calls import Held

LEVELS = Levels(
    in_flight=3,
    slots=10,
    slots_in_use=2,
    lag_seconds=0.0015,
    memory_bytes=50_000_000,
    sessions=4,
    cache=BoundedCache[Any]().stats(),
)


class Ended(Struct):
    """What is asked of a call."""

    is_found: bool = True
    ran: bool = True


def record(name: str = "add", duration_ms: float = 1.0, outcome: str = "success", **facts: Any) -> CompletionRecord:
    return CompletionRecord("", "info", "", "", "", name, duration_ms, outcome, 10, **facts)


def metrics(is_tool: Callable[[str], object] = lambda name: None) -> Metrics:
    return Metrics(is_tool, lambda: LEVELS)


def samples(counted: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """The values of one sample, by its labels' values in the order of the labels' names."""
    text = counted.snapshot().page()[0].decode()
    return {
        tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in parse(text)
        for sample in family.samples
        if sample.name == name
    }


def test_calls_are_counted_by_tool_and_outcome() -> None:
    counted = metrics()
    for outcome in ("success", "success", "late_completed"):
        counted.observe(record(outcome=outcome), Ended())
    counted.observe(record("divide"), Ended())
    assert samples(counted, "dragoman_calls_total") == {
        ("success", "add"): 2,
        ("late_completed", "add"): 1,
        ("success", "divide"): 1,
    }
    assert samples(counted, "dragoman_request_bytes_total") == {(): 40}


@pytest.mark.parametrize(
    ("duration_ms", "bound"), [(0.0, "0.0001"), (0.1, "0.0001"), (0.1001, "0.00025"), (600_000, "600.0"), (1e9, "+Inf")]
)
def test_a_duration_is_in_every_bucket_from_its_bound_on(duration_ms: float, bound: str) -> None:
    counted = metrics()
    counted.observe(record(duration_ms=duration_ms), Ended())
    buckets = samples(counted, "dragoman_call_duration_seconds_bucket")
    bounds = [*(str(each / 1000) for each in BOUNDS_MS), "+Inf"]
    assert [each for each in bounds if buckets[each, "add"] == 1] == bounds[bounds.index(bound) :]
    assert samples(counted, "dragoman_call_duration_seconds_count") == {("add",): 1}
    assert samples(counted, "dragoman_call_duration_seconds_sum") == {("add",): pytest.approx(duration_ms / 1000)}


def test_a_refused_call_is_counted_by_its_reason_and_has_no_duration() -> None:
    counted = metrics()
    never_ran = Ended(ran=False)
    counted.observe(record(outcome="tool_error", error_code="RESOURCE_EXHAUSTED", reason="no_free_slot"), never_ran)
    counted.observe(record(outcome="tool_error", error_code="INVALID_ARGUMENT"), never_ran)
    counted.observe(record(outcome="protocol_error", error_code="-32602"), never_ran)
    counted.observe(record(outcome="tool_error", error_code="NOT_FOUND"), Ended(ran=True))
    assert samples(counted, "dragoman_refusals_total") == {
        ("no_free_slot",): 1,
        ("invalid_argument",): 1,
        ("-32602",): 1,
    }
    assert samples(counted, "dragoman_call_duration_seconds_count") == {("add",): 1}


def test_a_result_from_the_cache_is_no_refusal() -> None:
    counted = metrics()
    counted.observe(record(cached=True), Ended(ran=False))
    assert samples(counted, "dragoman_refusals_total") == {}
    assert samples(counted, "dragoman_call_duration_seconds_count") == {("add",): 1}


@pytest.mark.slow
def test_a_flood_of_made_up_names_takes_no_memory() -> None:
    counted = metrics()
    unknown = Ended(is_found=False, ran=False)

    def flood(calls: int) -> None:
        for _ in range(calls):
            counted.observe(record(uuid4().hex * 4, outcome="tool_error", error_code="NOT_FOUND"), unknown)

    flood(100)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    flood(20_000)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 10_000
    assert samples(counted, "dragoman_calls_total") == {("tool_error", OTHER): 20_100}


@pytest.mark.slow
def test_tools_beyond_the_most_that_have_series_share_one() -> None:
    counted = metrics()
    for number in range(MOST_TOOLS + 50):
        counted.observe(record(f"tool_{number}"), Ended())
    calls = samples(counted, "dragoman_calls_total")
    assert len(calls) == MOST_TOOLS + 1
    assert calls["success", OTHER] == 50
    counted.observe(record("tool_0"), Ended())
    assert samples(counted, "dragoman_calls_total")["success", "tool_0"] == 2


def test_reasons_that_handlers_make_up_are_bounded_too() -> None:
    counted = metrics()
    for number in range(1000):
        refused = record(outcome="tool_error", error_code="RESOURCE_EXHAUSTED", reason=f"reason {number}")
        counted.observe(refused, Ended(ran=False))
    reasons = samples(counted, "dragoman_refusals_total")
    assert len(reasons) == MOST_REASONS + 1
    assert sum(reasons.values()) == 1000


def test_a_tool_that_was_refused_before_it_was_looked_up_still_has_its_name() -> None:
    counted = metrics({"add": "a tool"}.get)
    counted.observe(record("add", outcome="tool_error", error_code="RESOURCE_EXHAUSTED"), Ended(None, ran=False))
    counted.observe(record("sub", outcome="tool_error", error_code="RESOURCE_EXHAUSTED"), Ended(None, ran=False))
    assert samples(counted, "dragoman_calls_total") == {("tool_error", "add"): 1, ("tool_error", OTHER): 1}


HOSTILE = 'a"} 1\ndragoman_slots 99\\\n# EOF\n{x="\u2028é'


@pytest.mark.parametrize("read", [parse, parse_open_metrics])
def test_no_name_can_forge_a_line(read: Any) -> None:
    counted = metrics()
    counted.observe(record(HOSTILE), Ended())
    accept = "application/openmetrics-text" if read is parse_open_metrics else ""
    families = {family.name: family for family in read(counted.snapshot().page(accept)[0].decode())}
    (calls,) = [each for each in families["dragoman_calls"].samples if each.name == "dragoman_calls_total"]
    assert calls.labels == {"tool": HOSTILE, "outcome": "success"}
    assert [sample.value for sample in families["dragoman_slots"].samples] == [10]


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain;version=1.0.0;escaping=nonsense", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text;version=0.x,*/*;q=0.1", "application/openmetrics-text; version=1.0.0"),
    ],
)
def test_the_format_is_the_one_that_is_accepted_whatever_else_the_header_says(accept: str, content_type: str) -> None:
    body, said = metrics().snapshot().page(accept)
    assert said.startswith(content_type)
    assert body.endswith(b"# EOF\n") is ("openmetrics" in content_type)


def test_how_things_stand_is_part_of_the_page() -> None:
    counted = metrics()
    counted.refused_request(401)
    counted.refused_request(401)
    found = {name: samples(counted, name) for name in ("dragoman_build_info", "dragoman_http_refusals_total")}
    assert found == {"dragoman_build_info": {(__version__,): 1}, "dragoman_http_refusals_total": {("401",): 2}}
    levels = ("calls_in_flight", "slots", "slots_in_use", "event_loop_lag_seconds", "memory_bytes", "sessions")
    assert [samples(counted, f"dragoman_{name}")[()] for name in levels] == [3, 10, 2, 0.0015, 50_000_000, 4]


def test_a_snapshot_does_not_change_any_more() -> None:
    counted = metrics()
    counted.observe(record(), Ended())
    snapshot = counted.snapshot()
    counted.observe(record(), Ended())
    counted.observe(record("divide"), Ended())
    assert snapshot.calls == {("add", "success"): 1}


# In a runtime.


@tool
async def echo(text: str) -> str:
    return text


@tool
async def lookup(key: str) -> str:
    raise NotFound("no such key")


@tool(read_only=True, cache_ttl_ms=60_000)
async def kept() -> int:
    return 7


@resource("note://{name}")
async def note(name: str) -> str:
    return name


async def test_every_way_that_a_call_can_end_is_counted_once() -> None:
    held = Held(timeout_ms=50)
    clock = ManualClock()
    config = {"resources": {"max_concurrent_executions": 1}, "tools": {"max_payload_bytes": 100}}
    runtime = dragoman.create_server(
        dragoman.ServerOptions(config=make_config(config), clock=clock, tools=[echo, lookup, held.tool])
    )
    runtime.http()
    await runtime.start()
    await runtime.call("echo", {"text": "hello"})
    await runtime.call("echo", {"text": 5})
    await runtime.call("echo", {"text": "x" * 200})
    await runtime.call("lookup", {"key": "k"})
    await runtime.call("no such tool")
    holding = asyncio.create_task(runtime.call("hold"))
    await held.begun.wait()
    await runtime.call("echo", {"text": "no room"})
    assert runtime.metrics is not None
    levels = runtime.metrics.snapshot().levels
    assert (levels.in_flight, levels.slots, levels.slots_in_use) == (1, 1, 1)
    clock.advance(1)
    await holding
    assert ("hold", "late_completed") not in runtime.metrics.snapshot().calls
    held.release.set()
    await runtime.stop()
    snapshot = runtime.metrics.snapshot()
    assert snapshot.calls == {
        ("echo", "success"): 1,
        ("echo", "tool_error"): 3,
        ("hold", "late_completed"): 1,
        ("lookup", "tool_error"): 1,
        (OTHER, "tool_error"): 1,
    }
    assert snapshot.refusals == {"invalid_argument": 1, "payload_too_large": 1, "not_found": 1, "no_free_slot": 1}
    assert snapshot.levels.in_flight == 0


async def test_kept_results_are_counted_as_found() -> None:
    async with dragoman.open([kept]) as runtime:
        runtime.http()
        for _ in range(3):
            await runtime.call("kept")
        assert runtime.metrics is not None
        cache = runtime.metrics.snapshot().levels.cache
        assert (cache.hit_count, cache.entry_count) == (2, 1)
        assert runtime.metrics.snapshot().calls == {("kept", "success"): 3}


async def test_what_is_read_is_counted_under_its_template() -> None:
    async with open_server([note]) as server:
        server.runtime.http()
        client = await server.client()
        for name in ("one", "two"):
            await client.request("resources/read", {"uri": f"note://{name}"})
        assert server.runtime.metrics is not None
        assert server.runtime.metrics.snapshot().calls == {("resources/read note://{name}", "success"): 2}


async def test_there_are_no_metrics_without_http_or_when_they_are_switched_off() -> None:
    async with dragoman.open([echo]) as runtime:
        assert runtime.metrics is None
        assert runtime.observers == []
    async with dragoman.open([echo], {"http": {"metrics": False}}) as runtime:
        runtime.http()
        assert runtime.metrics is None
        assert runtime.observers == []


async def test_where_the_library_is_missing_calls_are_served_without_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with open_server([echo]) as server:
        server.runtime.http()
        assert server.runtime.metrics is None
        assert [entry["message"] for entry in server.log if entry["level"] == "warn"] == [
            "there are no metrics: prometheus-client is not installed"
        ]
        assert (await server.runtime.call("echo", {"text": "hello"})).value == "hello"


@tool
async def whoever(context: ToolContext) -> str:
    return context.caller.name


async def test_nobody_is_named() -> None:
    async with dragoman.open([whoever]) as runtime:
        runtime.http()
        await runtime.call("whoever", caller=Caller("somebody-in-particular"))
        assert runtime.metrics is not None
        assert b"somebody" not in runtime.metrics.snapshot().page()[0]


def documented(counted: Metrics) -> list[str]:
    """The rows of the page's table."""
    rows = []
    for family in counted.snapshot().collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
        said = ", ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{name}` | {family.type} | {said} | {family.documentation} |".replace("|  |", "| |"))
    return rows


@agent("clerk")
async def clerk(message: AgentMessage, context: AgentContext) -> None:
    """Does nothing."""


async def test_the_page_about_operations_names_every_metric_and_no_other() -> None:
    async with open_server([clerk]) as server:
        server.runtime.http()
        assert server.runtime.metrics is not None
        own = "| `dragoman_storage", "| `dragoman_agent"
        of_parts = [row for row in documented(server.runtime.metrics) if row.startswith(own)]
    assert len(of_parts) == 8
    counted = metrics()
    counted.observe(record(), Ended())
    counted.observe(record(outcome="tool_error", error_code="NOT_FOUND"), Ended(ran=False))
    counted.refused_request(401)
    counted.received_bytes = counted.sent_bytes = 1
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text("utf-8")
    assert [line for line in page.splitlines() if line.startswith("| `dragoman_")] == [
        *documented(counted),
        *of_parts,
    ]
    assert f"at most {MOST_TOOLS} tools" in page


def test_several_processes_are_one_server() -> None:
    one, other = metrics(), metrics()
    one.observe(record(duration_ms=1.0), Ended())
    other.observe(record(duration_ms=2.0), Ended())
    other.observe(record("divide", outcome="tool_error", error_code="NOT_FOUND"), Ended(ran=False))
    other.refused_request(401)
    passed_on = msgspec.json.decode(msgspec.json.encode(other.snapshot()), type=Snapshot)
    both = Snapshot.together([one.snapshot(), passed_on])
    assert both.calls == {("add", "success"): 2, ("divide", "tool_error"): 1}
    assert both.tools["add"].milliseconds == 3.0
    assert sum(both.tools["add"].buckets) == 2
    assert (both.refusals, both.http_refusals, both.payload_bytes) == ({"not_found": 1}, {401: 1}, 30)
    assert (both.levels.slots, both.levels.sessions, both.levels.lag_seconds) == (20, 8, 0.0015)
    assert b'dragoman_calls_total{outcome="success",tool="add"} 2.0' in both.page()[0]


def test_several_processes_have_no_more_series_than_one() -> None:
    ones = [metrics() for _ in range(3)]
    for number, one in enumerate(ones):
        for tool_number in range(MOST_TOOLS):
            one.observe(record(f"tool-{number}-{tool_number}"), Ended())
    together = Snapshot.together([one.snapshot() for one in ones])
    assert len(together.tools) == MOST_TOOLS + 1
    assert sum(sum(series.outcomes.values()) for series in together.tools.values()) == 3 * MOST_TOOLS
