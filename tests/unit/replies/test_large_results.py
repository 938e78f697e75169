"""A result that is too large costs no more than one that is as large as it may be."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest

from dragoman import Text, resource, tool
from dragoman.errors import Failed, ToolError
from dragoman.testing import open_server
from tests.support.counted import Counted
from tests.support.desk import Desk, body_of

LIMIT = 20_000
SETTINGS = {"max_response_bytes": LIMIT, "max_kept_bytes": LIMIT}
MOST_WRITTEN = 4 * LIMIT // Counted.length
"""How often a value may be written before its answer is given: encoding may begin again with more room."""

SHAPES: dict[str, Any] = {
    "list": lambda each: [each] * 100_000,
    "tuple": lambda each: (each,) * 100_000,
    "object": lambda each: {"rows": [each] * 100_000},
    "many keys": lambda each: {str(number): each for number in range(10_000)},
    "content blocks": lambda each: [Text("x", meta={"each": each})] * 100_000,
}


@pytest.mark.requirement("INV-MCP-RESP-003")
@pytest.mark.parametrize("dialect", ["structured", "plain", "envelope"])
@pytest.mark.parametrize("shape", SHAPES)
def test_encoding_a_result_stops_at_the_limit(dialect: str, shape: str) -> None:
    counted = Counted()
    answer = Desk(dialect, **SETTINGS).give(SHAPES[shape](counted))
    assert answer["isError"] is True
    assert counted.times <= MOST_WRITTEN


@pytest.mark.parametrize("dialect", ["structured", "plain", "envelope"])
def test_encoding_an_error_stops_at_the_limit(dialect: str) -> None:
    counted = Counted()
    error = Failed("m" * 1_000_000, {"rows": [counted] * 100_000})
    assert Desk(dialect, **SETTINGS).fail(error)["isError"] is True
    assert counted.times <= MOST_WRITTEN


@pytest.mark.parametrize("dialect", ["structured", "envelope"])
def test_result_that_was_not_encoded_to_its_end_says_the_limit_and_no_size(dialect: str) -> None:
    body = body_of(Desk(dialect, **SETTINGS).give(["x" * 100] * 10_000))
    details = body["error"]["context"] if dialect == "envelope" else body["details"]
    setting = "response.max_response_bytes"
    assert details == {"reason": "result_too_large", "limit": LIMIT, "setting": setting}


def test_envelope_shortens_and_keeps_a_result_that_is_exactly_as_large_as_is_kept() -> None:
    value = ["x" * 95] * 1000
    size = len(msgspec.json.encode(value))
    settings = {"max_response_bytes": 20_000}
    desk = Desk(max_kept_bytes=size, **settings)
    assert desk.whole(desk.give(value)) == value
    assert body_of(Desk(max_kept_bytes=size - 1, **settings).give(value))["success"] is False


def test_envelope_sends_what_may_be_sent_even_where_less_may_be_kept() -> None:
    value = ["x" * 95] * 90
    answer = Desk(max_kept_bytes=1024, max_response_bytes=20_000).give(value)
    assert body_of(answer)["data"] == value


@pytest.mark.parametrize("dialect", ["structured", "envelope"])
async def test_encoding_a_result_to_be_kept_for_others_stops_at_the_limit(dialect: str) -> None:
    counted = Counted()

    @tool(read_only=True, cache_ttl_ms=1000)
    def large() -> Any:
        return [counted] * 100_000

    async with open_server([large], {"response": {"dialect": dialect, **SETTINGS}}) as server:
        result = await (await server.client()).call_tool("large")
    assert result["isError"] is True
    assert counted.times <= 2 * MOST_WRITTEN


async def test_encoding_a_resource_stops_at_the_limit() -> None:
    counted = Counted()

    @resource("large://rows")
    def rows() -> Any:
        return [counted] * 100_000

    async with open_server([rows], {"response": SETTINGS}) as server:
        answer = await (await server.client()).request("resources/read", {"uri": "large://rows"})
    assert answer["error"]["message"] == "Result too large"
    assert counted.times <= MOST_WRITTEN


# Reading on


def reading(value: Any, kind: str) -> tuple[int, dict[str, Any]]:
    """The most bytes that are taken to read one part of a result, and the part."""
    desk = Desk()
    answer = desk.give(value)
    (cursor,) = [each["cursor"] for each in body_of(answer)["metadata"]["continuations"] if each["kind"] == kind]
    desk.go_on(cursor)
    tracemalloc.start()
    try:
        part = body_of(desk.go_on(cursor))["data"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak, part


@pytest.mark.parametrize(
    ("kind", "of_length"),
    [
        ("list", lambda length: {"rows": [{"number": 1, "text": "some text"}] * (length // 30)}),
        ("string", lambda length: {"before": list(range(50)), "text": "é" * (length // 2)}),
        ("json", lambda length: ["x" * 10_001] * (length // 10_000)),
    ],
)
def test_part_of_a_long_result_costs_what_the_part_holds(kind: str, of_length: Any) -> None:
    short, part = reading(of_length(300_000), kind)
    long, of_long = reading(of_length(3_000_000), kind)
    assert of_long["total"] > 5 * part["total"]
    assert long < 1.5 * short


def test_lists_anywhere_in_a_result_are_read_on_where_they_were_cut() -> None:
    value = {
        'é"': ["ü"] * 150,
        "inner": [{"rows": list(range(101 + each)), "wide": {"😀": each}} for each in range(8)],
        "last": {"deep": [[None, [{"key": "\\n"}] * 120], "x"]},
    }
    desk = Desk()
    answer = desk.give(value)
    assert len(body_of(answer)["metadata"]["continuations"]) == 10
    assert desk.whole(answer) == value


def test_error_without_a_message_of_text_is_told_all_the_same() -> None:
    error: Any = ToolError(["not", "text"])  # type: ignore[arg-type]
    assert Desk("structured").fail(error)["isError"] is True
