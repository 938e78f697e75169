"""The `envelope` dialect: its shape, its codes, and whether a call may be repeated."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import Image, Outcome, Text, ToolDefinition, define_tool, errors, tool
from dragoman.errors import ToolError
from dragoman.replies.failures import EnvelopeError, code_of
from dragoman.replies.settings import ResponseConfig
from dragoman.replies.vocabulary import EnvelopeCode
from dragoman.schemas.schema import compile_schema
from dragoman.testing import open_server
from dragoman.tools.tool import Hints
from tests.support.desk import Desk, body_of

# The shape


@pytest.mark.requirement("INV-MCP-RESP-001", "INV-MCP-RESP-004", "INV-MCP-RESP-005", "PRD-RESP-03")
@pytest.mark.parametrize("value", [None, True, 0, "text", [], {}, {"a": [1, 2]}])
def test_result_is_wrapped_with_its_metadata(value: Any) -> None:
    answer = Desk().give(value)
    metadata = {"durationMs": 12, "cached": False, "truncated": False}
    assert body_of(answer) == {"success": True, "data": value, "metadata": metadata}
    assert answer["isError"] is False
    assert "dragoman/truncated" not in answer["_meta"]
    assert "structuredContent" not in answer


@pytest.mark.requirement("INV-MCP-RESP-001", "INV-MCP-RESP-005", "PRD-RESP-02", "PRD-RESP-03")
def test_error_is_wrapped_with_its_metadata() -> None:
    answer = Desk().fail(errors.NotFound("No such thing", {"name": "x"}))
    assert body_of(answer) == {
        "success": False,
        "error": {"code": "NOT_FOUND", "message": "No such thing", "context": {"name": "x"}, "retryable": False},
        "metadata": {"durationMs": 12},
    }
    assert answer["isError"] is True


@pytest.mark.requirement("INV-MCP-RESP-005")
@pytest.mark.parametrize(("duration", "told"), [(0.0, 0), (0.999, 0), (1.0, 1), (1234.567, 1234)])
def test_duration_is_in_whole_milliseconds(duration: float, told: int) -> None:
    desk = Desk()
    for outcome in (Outcome(1), Outcome([0] * 101), Outcome(error=errors.NotFound("m"))):
        call = desk.call()
        call.duration_ms = duration
        found = body_of(desk.answer(outcome, call))["metadata"]["durationMs"]
        assert (found, type(found)) == (told, int)


def test_structured_content_is_the_data_and_not_the_envelope() -> None:
    answer = Desk(output_schema={"type": "object"}).give({"a": 1})
    assert answer["structuredContent"] == body_of(answer)["data"] == {"a": 1}


@pytest.mark.requirement("PRD-P7")
@pytest.mark.parametrize("dialect", ["structured", "envelope", "plain"])
@pytest.mark.parametrize("value", [{"a": "x"}, None, [Text("t")]])
def test_result_that_breaks_its_output_schema_is_not_sent(dialect: str, value: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    answer = Desk(dialect, output_schema=schema).give(value)
    assert answer["isError"] is True
    assert "structuredContent" not in answer


def test_content_blocks_pass_unchanged_without_an_envelope_or_not_at_all() -> None:
    desk = Desk(max_response_bytes=2000, max_string_length=10)
    assert desk.give([Text("x" * 100)])["content"] == [{"type": "text", "text": "x" * 100}]
    told = body_of(desk.give(Image(b"\0" * 3000)))["error"]
    assert (told["code"], told["message"], told["retryable"]) == ("OPERATION_FAILED", "Result too large", False)
    assert told["context"]["reason"] == "result_too_large"


@pytest.mark.parametrize("value", [object(), "\ud800", {"a": {1, object()}}])
def test_result_that_is_not_json_is_an_internal_error(value: Any) -> None:
    assert body_of(Desk().give(value))["error"]["code"] == "INTERNAL_ERROR"


# Codes


@pytest.mark.requirement("PRD-RESP-01")
def test_the_codes_are_exactly_these() -> None:
    listed = (
        "INVALID_INPUT MISSING_REQUIRED_FIELD INVALID_FORMAT ARRAY_TOO_LARGE NOT_FOUND ALREADY_EXISTS CONFLICT"
        " OPERATION_FAILED TOOL_TIMEOUT RATE_LIMITED MEMORY_PRESSURE INTERNAL_ERROR NOT_IMPLEMENTED"
        " SERVICE_UNAVAILABLE"
    )
    assert [code.value for code in EnvelopeCode] == listed.split()


class Odd(ToolError):
    """A class of a user's own."""


class Gone(errors.NotFound):
    """A more particular one."""


def caused_by(cause: Exception) -> errors.InternalFailure:
    failure = errors.InternalFailure("The tool failed")
    failure.__cause__ = cause
    return failure


@pytest.mark.requirement("INV-MCP-RESP-002", "INV-MCP-TIMEOUT-004", "PRD-RESP-01")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidArgument("m"), "INVALID_INPUT"),
        (errors.PayloadTooLarge(2, 1), "INVALID_INPUT"),
        (errors.LimitExceeded("m", {"errors": ["?"]}), "INVALID_INPUT"),
        (errors.LimitExceeded("m", {"errors": 7}), "INVALID_INPUT"),
        (errors.LimitExceeded("m"), "INVALID_INPUT"),
        (errors.NotFound("m"), "NOT_FOUND"),
        (errors.Conflict("m"), "CONFLICT"),
        (errors.AlreadyExists("m"), "ALREADY_EXISTS"),
        (errors.Unauthorized("m"), "OPERATION_FAILED"),
        (errors.ResourceExhausted("m"), "SERVICE_UNAVAILABLE"),
        (errors.NoFreeSlot(1), "SERVICE_UNAVAILABLE"),
        (errors.Stopping(), "SERVICE_UNAVAILABLE"),
        (errors.RateLimited(1, 5), "RATE_LIMITED"),
        (errors.MemoryPressure("m"), "MEMORY_PRESSURE"),
        (errors.TimedOut("m"), "TOOL_TIMEOUT"),
        (errors.Failed("m"), "OPERATION_FAILED"),
        (errors.ResultTooLarge(2, 1), "OPERATION_FAILED"),
        (errors.InternalFailure("m"), "INTERNAL_ERROR"),
        (caused_by(ValueError()), "INTERNAL_ERROR"),
        (caused_by(NotImplementedError()), "NOT_IMPLEMENTED"),
        (Odd("m"), "OPERATION_FAILED"),
        (Gone("m"), "NOT_FOUND"),
    ],
)
def test_each_error_has_its_code(error: ToolError, code: str) -> None:
    assert body_of(Desk().fail(error))["error"]["code"] == code


@pytest.mark.requirement("PRD-RESP-01", "PRD-LIMIT-02", "PRD-LIMIT-03", "PRD-LIMIT-05")
@pytest.mark.parametrize(
    ("value", "code", "found"),
    [
        ([1, 2, 3, 4], "ARRAY_TOO_LARGE", {"path": "/value", "code": "ARRAY_TOO_LARGE", "limit": 3, "actual": 4}),
        (
            ["x" * 11, [1, 2, 3, 4]],
            "ARRAY_TOO_LARGE",
            {"path": "/value/1", "code": "ARRAY_TOO_LARGE", "limit": 3, "actual": 4},
        ),
        ("x" * 11, "INVALID_INPUT", {"path": "/value", "code": "STRING_TOO_LONG", "limit": 10, "actual": 11}),
        ([[[[]]]], "INVALID_INPUT", {"path": "/value/0/0", "code": "TOO_DEEP", "limit": 3, "actual": 4}),
        (["x" * 10] * 3, None, None),
    ],
)
async def test_a_call_beyond_a_limit_is_answered_with_the_code_of_that_limit(
    value: Any, code: str | None, found: dict[str, Any] | None
) -> None:
    limits = {"max_array_size": 3, "max_string_length": 10, "max_object_depth": 3}
    async with open_server([keep], {"response": {"dialect": "envelope"}, "limits": limits}) as server:
        answer = body_of(await (await server.client()).call_tool("keep", {"value": value}))
    assert answer["success"] is (code is None)
    if found is not None:
        assert answer["error"]["code"] == code
        (said,) = answer["error"]["context"]["errors"]
        assert {key: said[key] for key in found} == found


@tool
async def keep(value: Any) -> dict[str, bool]:
    """Takes anything."""
    return {"kept": True}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "MISSING_REQUIRED_FIELD"),
        ({"a": "b"}, "INVALID_FORMAT"),
        ({"a": 1}, "INVALID_INPUT"),
        ({"a": "a", "b": 1}, "INVALID_INPUT"),
        ({"b": 1}, "INVALID_INPUT"),
    ],
)
def test_code_of_arguments_that_do_not_fit_says_in_which_way(arguments: dict[str, Any], code: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^a"}, "b": {"type": "string"}},
        "required": ["a"],
    }
    with pytest.raises(errors.InvalidArgument) as caught:
        compile_schema(schema).check(arguments)
    assert code_of(caught.value) == code


@pytest.mark.requirement("INV-MCP-RESP-002", "PRD-RESP-02")
@pytest.mark.parametrize(
    ("code", "message", "retry_after"),
    [("ODD", "m", 1), (None, "m", 1), ("NOT_FOUND", "", 1), ("NOT_FOUND", "m" * 1001, 1), ("NOT_FOUND", "m", 0)],
)
def test_error_that_the_contract_does_not_allow_cannot_be_made(code: Any, message: str, retry_after: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        EnvelopeError(code, message, retry_after_ms=retry_after)


@pytest.mark.requirement("PRD-RESP-02")
@pytest.mark.parametrize(
    ("message", "told"),
    [("", "NOT_FOUND"), ("m", "m"), ("m" * 1000, "m" * 1000), ("m" * 1001, "m" * 985 + "... [truncated]"), (7, "7")],
)
def test_message_has_one_to_a_thousand_characters(message: Any, told: str) -> None:
    assert body_of(Desk().fail(errors.NotFound(message)))["error"]["message"] == told


@pytest.mark.parametrize(
    ("details", "context"),
    [
        (None, None),
        ({}, None),
        ({"retryable": False, "retryAfterMs": 5}, None),
        ({"a": 1, "retryable": True}, {"a": 1}),
        ({"a": object()}, {"reason": "details_not_serializable"}),
        (["not", "a", "map"], None),
    ],
)
def test_context_is_the_details_without_what_is_said_beside_it(details: Any, context: Any) -> None:
    assert body_of(Desk().fail(errors.NotFound("m", details)))["error"].get("context") == context


# Whether to repeat

MUTATION, READ, IDEMPOTENT = Hints(), Hints(read_only=True), Hints(idempotent=True)


@pytest.mark.requirement("INV-MCP-RESP-006")
@pytest.mark.parametrize(
    ("error", "mutation", "harmless"),
    [
        (errors.TimedOut("m"), False, True),
        (errors.TimedOut("m", {"retryable": False}), False, False),
        (errors.Failed("m"), False, False),
        (errors.Failed("m", {"retryable": True}), False, True),
        (errors.InternalFailure("m"), False, False),
        (errors.ResultTooLarge(2, 1), False, False),
        (errors.RateLimited(1, 5), True, True),
        (errors.MemoryPressure("m"), True, True),
        (errors.NoFreeSlot(1), True, True),
        (errors.Stopping(), True, True),
        (errors.ResourceExhausted("m", {"retryable": False}), False, False),
        (errors.PayloadTooLarge(2, 1), False, False),
        (errors.InvalidArgument("m"), False, False),
        (errors.NotFound("m"), False, False),
        (errors.Conflict("m"), False, False),
        (errors.Conflict("m", {"retryable": True}), True, True),
        (errors.Unauthorized("m"), False, False),
        (errors.Failed("m", {"retryable": "yes"}), False, False),
    ],
)
def test_repeating_is_advised_where_it_is_safe_and_worth_it(error: ToolError, mutation: bool, harmless: bool) -> None:
    told = [body_of(Desk(hints=hints).fail(error))["error"]["retryable"] for hints in (MUTATION, READ, IDEMPOTENT)]
    assert told == [mutation, harmless, harmless]


@pytest.mark.requirement("INV-MCP-RESP-006")
def test_call_of_no_tool_that_timed_out_is_not_to_be_repeated() -> None:
    desk = Desk()
    assert body_of(desk.fail(errors.TimedOut("m"), desk.call("unknown")))["error"]["retryable"] is False


@pytest.mark.requirement("PRD-RESP-02")
@pytest.mark.parametrize(
    ("details", "told"),
    [
        ({"retryAfterMs": 1500}, 1500),
        ({}, None),
        ({"retryAfterMs": 0}, None),
        ({"retryAfterMs": True}, None),
        ({"retryAfterMs": "soon"}, None),
        ({"retryAfterMs": 1500, "retryable": False}, None),
    ],
)
def test_when_to_repeat_is_told_where_it_is_known(details: dict[str, Any], told: int | None) -> None:
    error = errors.MemoryPressure("m", details)
    assert body_of(Desk().fail(error))["error"].get("retryAfterMs") == told


# Limits


@pytest.mark.requirement("PRD-RESP-05")
def test_limits_are_these_unless_told_otherwise() -> None:
    config = ResponseConfig()
    assert (config.max_response_bytes, config.max_list_items, config.max_string_length) == (1_048_576, 100, 10_000)
    assert config.truncation_suffix == "... [truncated]"


@pytest.mark.requirement("PRD-RESP-05")
@pytest.mark.parametrize(
    ("settings", "value", "shown"),
    [
        ({"max_list_items": 3}, [1, 2, 3], [1, 2, 3]),
        ({"max_list_items": 3}, [1, 2, 3, 4], [1, 2, 3]),
        ({"max_string_length": 20}, "x" * 20, "x" * 20),
        ({"max_string_length": 20, "truncation_suffix": "~"}, "x" * 21, "x" * 19 + "~"),
        ({}, [0] * 101, [0] * 100),
        ({}, "x" * 10_001, "x" * (10_000 - len("... [truncated]")) + "... [truncated]"),
    ],
)
async def test_each_limit_of_responses_is_the_one_that_is_set(settings: dict[str, Any], value: Any, shown: Any) -> None:
    async def give(arguments: dict[str, Any], context: Any) -> Any:
        return {"value": value}

    definition = ToolDefinition(name="give", description="", input_schema={"type": "object"})
    config = {"response": {"dialect": "envelope", **settings}}
    async with open_server([define_tool(definition, give)], config) as server:
        result = await (await server.client()).call_tool("give")
    body = body_of(result)
    assert (body["data"], body["metadata"]["truncated"]) == ({"value": shown}, shown != value)
