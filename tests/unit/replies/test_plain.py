"""The `plain` dialect: the specification's sentences."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from dragoman import errors, tool
from dragoman.errors import ToolError
from dragoman.testing import open_server
from tests.support.desk import Desk, body_of


def text_of(answer: dict[str, Any]) -> str:
    (block,) = answer["content"]
    text: str = block["text"]
    return text


@pytest.mark.parametrize("value", [{}, {"a": [1, None, True]}, "text", None])
def test_result_is_its_json_text(value: Any) -> None:
    answer = Desk("plain").give(value)
    assert (body_of(answer), answer["isError"]) == (value, False)


def findings(*found: Any, rules: tuple[str, ...] = ()) -> errors.InvalidArgument:
    error = errors.InvalidArgument("m", {"errors": list(found)})
    error.rules = rules
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.NotFound("m", {"module_id": "image.resize"}), "Module not found: image.resize"),
        (errors.NotFound("m", {"module_id": ""}), "Module not found: "),
        (errors.NotFound("m"), "Module error: NOT_FOUND"),
        (
            findings({"field": "parameters.width", "code": "int_type", "message": "Input should be a valid integer"}),
            "Input validation failed:\n- parameters.width: Input should be a valid integer (int_type)",
        ),
        (
            findings(
                {"path": "/a/0", "message": "is bad"},
                {"path": "", "message": "too"},
                rules=("int_type", "missing", "x"),
            ),
            "Input validation failed:\n- a.0: is bad (int_type)\n- arguments: too (missing)",
        ),
        (findings({"path": "/a", "message": "m"}), "Input validation failed:\n- a: m (invalid_argument)"),
        (findings("odd"), "Input validation failed:\n- arguments: odd (invalid_argument)"),
        (findings(), "Input validation failed"),
        (errors.InvalidArgument("module_id must be a text"), "Invalid input: module_id must be a text"),
        (errors.Conflict("It has changed"), "Invalid input: It has changed"),
        (errors.PayloadTooLarge(2, 1), "Invalid input: Arguments are 2 bytes, and at most 1 are taken"),
        (errors.Unauthorized("ada may not", {"caller_id": "ada"}), "Access denied"),
        (errors.TimedOut("m", {"timeoutMs": 30_000}), "Module timed out after 30000ms"),
        (errors.TimedOut("m", {"timeout_ms": 0}), "Module timed out after 0ms"),
        (errors.TimedOut("m"), "Module timed out after 5000ms"),
        (errors.RateLimited(1, 5), "Call frequency limit exceeded"),
        (errors.NoFreeSlot(1), "Module error: RESOURCE_EXHAUSTED"),
        (errors.Failed("m"), "Module error: INTERNAL"),
        (errors.InternalFailure("secret"), "Internal error occurred"),
        (errors.ResultTooLarge(2, 1), "Module error: RESULT_TOO_LARGE"),
    ],
)
def test_each_error_has_its_sentence(error: ToolError, text: str) -> None:
    answer = Desk("plain").fail(error)
    assert (text_of(answer), answer["isError"]) == (text, True)


def test_unknown_tool_is_a_module_that_was_not_found() -> None:
    desk = Desk("plain")
    assert text_of(desk.fail(errors.NotFound("m"), desk.call("no.such"))) == "Module not found: no.such"
    assert text_of(desk.fail(errors.TimedOut("m"), desk.call("no.such"))) == "Module timed out after 0ms"


@pytest.mark.parametrize("value", [object(), "\ud800"])
def test_result_that_is_not_json_is_an_error(value: Any) -> None:
    assert text_of(Desk("plain").give(value)) == "Failed to serialize module output"


def test_result_that_is_too_large_is_an_error() -> None:
    assert text_of(Desk("plain", max_response_bytes=2000).give("x" * 2000)) == "Module error: RESULT_TOO_LARGE"


async def test_what_is_beyond_a_limit_is_named_like_any_other_finding() -> None:
    @tool
    def count(names: list[str]) -> int:
        """Count."""
        return len(names)

    config = {"response": {"dialect": "plain"}, "limits": {"max_array_size": 2}}
    async with open_server([count], config) as server:
        answer = await (await server.client()).call_tool("count", {"names": ["a", "b", "c"]})
    found = "names: has 3 items, and at most 2 are allowed (limits.max_array_size) (ARRAY_TOO_LARGE)"
    assert text_of(answer) == f"Input validation failed:\n- {found}"


# What somebody else has worded already


def test_a_result_that_is_json_already_is_sent_letter_by_letter() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    answer = Desk("plain", output_schema=schema).give(Raw(b'{"a": 1}'))
    assert (text_of(answer), answer["structuredContent"]) == ('{"a": 1}', {"a": 1})


def test_an_error_that_brings_its_own_words_is_told_in_them_and_in_no_others() -> None:
    error = errors.Unauthorized("Nobody may", {"caller_id": "ada"})
    error.plain = "Not you"
    assert text_of(Desk("plain").fail(error)) == "Not you"
