"""The `structured` dialect obeys the limit, and says so when it had to."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import Image, Text, tool
from dragoman.errors import Failed, InvalidArgument
from dragoman.testing import open_server
from tests.support.desk import Desk, body_of

LIMIT = 2000


def largest() -> int:
    """How many letters a result may have before it is too large."""
    desk = Desk("structured", max_response_bytes=LIMIT)
    return next(length for length in range(LIMIT, 0, -1) if not desk.give("x" * length)["isError"])


@pytest.mark.requirement("INV-MCP-RESP-003")
def test_result_may_be_exactly_as_large_as_the_limit_and_no_larger() -> None:
    desk = Desk("structured", max_response_bytes=LIMIT)
    most = largest()
    assert body_of(desk.give("x" * most)) == "x" * most
    error = body_of(desk.give("x" * (most + 1)))
    assert (error["code"], error["message"]) == ("INTERNAL", "Result too large")
    facts = {"reason": "result_too_large", "limit": LIMIT, "actual": LIMIT + 1}
    assert error["details"] == {**facts, "setting": "response.max_response_bytes"}


@pytest.mark.requirement("INV-MCP-RESP-003")
@pytest.mark.parametrize("character", ['"', "\\", "é", "😀", "\x00"])
def test_size_is_counted_in_the_bytes_of_the_answer(character: str) -> None:
    desk = Desk("structured", max_response_bytes=LIMIT)
    assert desk.give(character * largest())["isError"] is True


@pytest.mark.requirement("INV-MCP-RESP-003")
def test_structured_content_counts_too() -> None:
    value = {"text": "x" * (largest() // 2)}
    assert Desk("structured", max_response_bytes=LIMIT).give(value)["isError"] is False
    schema = {"type": "object"}
    assert Desk("structured", max_response_bytes=LIMIT, output_schema=schema).give(value)["isError"] is True


@pytest.mark.requirement("INV-MCP-RESP-003")
@pytest.mark.parametrize("dialect", ["structured", "envelope", "plain"])
@pytest.mark.parametrize("length", range(1000, 9001, 500))
def test_nothing_is_taken_for_small_that_is_not(dialect: str, length: int) -> None:
    schema = {"type": "object", "properties": {"text": {"pattern": '^"*$'}}}
    answer = Desk(dialect, max_response_bytes=20_000, output_schema=schema).give({"text": '"' * length})
    # Each quote takes two bytes as JSON and four as JSON within a string.
    assert answer["isError"] is (6 * length > 19_000)


def test_content_blocks_pass_unchanged_or_not_at_all() -> None:
    desk = Desk("structured", max_response_bytes=LIMIT)
    assert desk.give([Text("a"), Image(b"\0" * 300)])["content"][1]["data"] == "A" * 400
    assert body_of(desk.give([Text("a"), Image(b"\0" * 3000)]))["message"] == "Result too large"


@pytest.mark.requirement("INV-MCP-RESP-003")
@pytest.mark.parametrize(
    ("error", "message", "details"),
    [
        (Failed("m" * 5000, {"a": 1}), "m" * 985 + "... [truncated]", {"a": 1}),
        (Failed("m", {"a": "x" * 5000}), "m", {"reason": "details_too_large"}),
        (Failed("m" * 5000, {"a": "x" * 5000}), "m" * 985 + "... [truncated]", {"reason": "details_too_large"}),
        (Failed('"' * 5000), '"' * 235 + "... [truncated]", None),
        (Failed("m", {"a": object()}), "m", {"reason": "details_not_serializable"}),
        (Failed("m" * 5000, {"a": object()}), "m" * 985 + "... [truncated]", {"reason": "details_not_serializable"}),
    ],
)
def test_error_that_is_too_large_is_shortened_visibly(error: Failed, message: str, details: Any) -> None:
    told = body_of(Desk("structured", max_response_bytes=LIMIT).fail(error))
    assert (told["message"], told.get("details")) == (message, details)
    assert (told["code"], told["runId"], told["correlationId"]) == ("INTERNAL", "run-1", "corr-1")


def test_error_that_is_not_too_large_is_told_in_full() -> None:
    told = body_of(Desk("structured").fail(InvalidArgument("m" * 5000, {"a": "x" * 5000})))
    assert (told["message"], told["details"]) == ("m" * 5000, {"a": "x" * 5000})


@pytest.mark.requirement("INV-MCP-RESP-003")
async def test_result_of_a_real_call_that_is_too_large_is_recorded_as_an_error() -> None:
    @tool
    def large() -> str:
        return "x" * 1_048_576

    async with open_server([large]) as server:
        client = await server.client()
        result = await client.call_tool("large")
        (record,) = server.records
    assert body_of(result)["details"]["reason"] == "result_too_large"
    assert (record["outcome"], record["errorCode"]) == ("tool_error", "INTERNAL")


@pytest.mark.requirement("INV-MCP-RESP-006")
@pytest.mark.parametrize("is_read_only", [False, True])
@pytest.mark.parametrize(
    ("details", "told"),
    [
        ({"retryable": True, "retryAfterMs": 5, "a": 1}, {"retryable": False, "a": 1}),
        ({"retryable": False, "retryAfterMs": 5}, {"retryable": False}),
        ({"a": 1}, {"a": 1}),
    ],
)
async def test_details_advise_to_repeat_a_failed_call_only_where_that_is_safe(
    is_read_only: bool, details: dict[str, Any], told: dict[str, Any]
) -> None:
    @tool(read_only=is_read_only)
    async def work() -> None:
        raise Failed("It broke", details)

    async with open_server([work]) as server:
        answer = body_of(await (await server.client()).call_tool("work"))
    is_advised = is_read_only and details.get("retryable") is True
    assert answer["details"] == (details if is_advised else told)
