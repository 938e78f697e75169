"""What holds for every answer, whatever a tool returns or raises, in each dialect."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dragoman import errors
from dragoman.calls.call import Outcome
from dragoman.errors import ToolError
from dragoman.replies.truncation import Caps, shorten
from dragoman.replies.vocabulary import EnvelopeCode
from dragoman.tools.tool import Hints
from tests.support.desk import SERVER_INFO, Desk, body_of

# Generators. Runs of one character, so that what is large is cheap to make and to shrink.

characters = st.sampled_from(["a", '"', "\\", "\x00", "\x7f", "é", "€", "😀", "👩\u200d🚀", "e\u0301", "\u2028"])
texts = st.text(st.characters(codec="utf-8"), max_size=20) | st.builds(str.__mul__, characters, st.integers(0, 3000))
atoms = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    atoms | texts,
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(texts, inner, max_size=6),
        st.builds(lambda item, times: [item] * times, inner, st.integers(0, 150)),
        st.builds(lambda item, times: {f"k{n}": item for n in range(times)}, inner, st.integers(0, 60)),
    ),
    max_leaves=10,
)


def nested(depth: int) -> Any:
    value: Any = "x" * 50
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


deep = st.integers(1, 300).map(nested)
MOST_TO_READ = 20_000  # Bytes; a part may hold no more than twenty of them.
limits = st.integers(1024, 3000) | st.integers(1024, 200_000)
dialects = st.sampled_from(["structured", "envelope", "plain"])
correlation_ids = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=128)
settings = st.fixed_dictionaries(
    {
        "max_response_bytes": limits,
        "max_list_items": st.integers(1, 400),
        "max_string_length": st.integers(1, 5000),
        "truncation_suffix": st.sampled_from(["... [truncated]", "", "…", "<cut>" * 20]),
    }
)
unsendable = st.sampled_from(["\ud800", {"\udfff": 1}, {"a": ["\ud83d"]}, object(), {object(): 1}])
details = st.none() | st.dictionaries(texts, values, max_size=4) | unsendable
kinds = st.sampled_from(
    [
        errors.InvalidArgument,
        errors.NotFound,
        errors.Conflict,
        errors.AlreadyExists,
        errors.Unauthorized,
        errors.ResourceExhausted,
        errors.MemoryPressure,
        errors.Failed,
        errors.TimedOut,
        errors.InternalFailure,
    ]
)
failures = st.builds(lambda kind, message, facts: kind(message, facts), kinds, texts | unsendable, details)

ENVELOPE = jsonschema_rs.Draft202012Validator(
    {
        "type": "object",
        "required": ["success", "metadata"],
        "properties": {
            "metadata": {
                "type": "object",
                "required": ["durationMs"],
                "properties": {
                    "durationMs": {"type": "integer", "minimum": 0},
                    "cached": {"type": "boolean"},
                    "truncated": {"type": "boolean"},
                },
            }
        },
        "oneOf": [
            {
                "required": ["data"],
                "properties": {
                    "success": {"const": True},
                    "error": False,
                    "metadata": {"required": ["cached", "truncated"]},
                },
            },
            {
                "required": ["error"],
                "properties": {
                    "success": {"const": False},
                    "data": False,
                    "error": {
                        "type": "object",
                        "required": ["code", "message", "retryable"],
                        "properties": {
                            "code": {"enum": [code.value for code in EnvelopeCode]},
                            "message": {"type": "string", "minLength": 1, "maxLength": 1000},
                            "context": {"type": "object"},
                            "retryable": {"type": "boolean"},
                            "retryAfterMs": {"type": "integer", "exclusiveMinimum": 0},
                        },
                        "additionalProperties": False,
                    },
                },
            },
        ],
    }
)


@pytest.mark.requirement("INV-MCP-RESP-003", "INV-MCP-RESP-001", "PRD-METRIC-03")
@given(dialect=dialects, value=values | deep | unsendable, settings=settings, correlation_id=correlation_ids)
@example("envelope", {f"k{n}": n for n in range(200)}, {"max_response_bytes": 1024}, "c")
@example("envelope", ["\x00" * 3000] * 3, {"max_response_bytes": 1024}, '"' * 128)
def test_no_result_is_above_the_limit(dialect: str, value: Any, settings: dict[str, Any], correlation_id: str) -> None:
    desk = Desk(dialect, **settings)
    answer = desk.give(value, desk.call(correlation_id=correlation_id))
    if dialect == "envelope":
        ENVELOPE.validate(body_of(answer))


@pytest.mark.requirement("INV-MCP-RESP-003", "INV-MCP-RESP-002", "PRD-RESP-02", "PRD-METRIC-03")
@given(dialect=dialects, error=failures, limit=limits, correlation_id=correlation_ids)
@example("structured", errors.Failed("\x00" * 3000, {"a": "x" * 3000}), 1024, '"' * 128)
@example("envelope", errors.Failed("\x00" * 3000, {"a": "x" * 3000}), 1024, '"' * 128)
@example("plain", errors.InvalidArgument("\x00" * 3000), 1024, '"' * 128)
@example("envelope", errors.NotFound(""), 1024, "c")
def test_no_error_is_above_the_limit(dialect: str, error: ToolError, limit: int, correlation_id: str) -> None:
    desk = Desk(dialect, max_response_bytes=limit)
    answer = desk.fail(error, desk.call(correlation_id=correlation_id))
    assert answer["isError"] is True
    if dialect == "structured":
        assert body_of(answer)["code"] == error.code
    elif dialect == "envelope":
        ENVELOPE.validate(body_of(answer))


@pytest.mark.requirement("INV-MCP-RESP-004", "PRD-RESP-06")
@given(value=values | deep, settings=settings)
def test_truncated_is_said_exactly_when_something_is_missing(value: Any, settings: dict[str, Any]) -> None:
    desk = Desk(**settings)
    answer = desk.give(value)
    body = body_of(answer)
    assume(body["success"])
    told = body["metadata"]["truncated"]
    assert told is (body["data"] != value)
    assert answer["_meta"].get("dragoman/truncated", False) is told
    assert ("dragoman/nextCursor" in answer["_meta"]) is told


@pytest.mark.requirement("PRD-RESP-06")
@given(value=values, settings=settings)
def test_no_list_and_no_string_is_longer_than_it_may_be(value: Any, settings: dict[str, Any]) -> None:
    desk = Desk(**settings)
    body = body_of(desk.give(value))
    assume(body["success"])
    items, length = desk.config.max_list_items, desk.config.max_string_length
    found = shorten(body["data"], Caps(items, items, length), "")
    assert found is not None
    assert found.cuts == []


@pytest.mark.slow
@pytest.mark.requirement("INV-MCP-RESP-003")
@given(
    value=values | deep,
    limit=st.integers(1024, 2500),
    items=st.integers(1, 30),
    length=st.integers(100, 1000),
    suffix=st.sampled_from(["... [truncated]", "", "<cut>" * 20]),
)
@example(['"' * 90] * 200, 1024, 7, 100, "")
@example([{"s": "😀" * 2000, "l": list(range(100))}] * 3, 1200, 10, 200, "…")
@example([{f"k{n}": n for n in range(300)}, 1], 1100, 10, 200, "…")
def test_following_the_cursors_gives_the_original(value: Any, limit: int, items: int, length: int, suffix: str) -> None:
    assume(len(msgspec.json.encode(value)) < MOST_TO_READ)
    desk = Desk(max_response_bytes=limit, max_list_items=items, max_string_length=length, truncation_suffix=suffix)
    assert desk.whole(desk.give(value)) == value


rows = atoms | st.builds(str.__mul__, characters, st.integers(0, 30)) | st.lists(st.integers(0, 9), max_size=20)
schemas = st.fixed_dictionaries(
    {
        "rows": st.fixed_dictionaries(
            {"type": st.just("array")}, optional={"minItems": st.integers(0, 200), "maxItems": st.integers(200, 400)}
        ),
        "text": st.sampled_from(
            [{"type": "string"}, {"minLength": 500}, {"pattern": "^a*$"}, {"maxLength": 5000}, {"type": "string"}]
        ),
    }
)


@pytest.mark.slow
@pytest.mark.requirement("PRD-P7", "INV-MCP-RESP-003")
@given(
    properties=schemas,
    rows=st.builds(lambda row, times: [row] * times, rows, st.integers(200, 300)),
    text=st.integers(0, 5000).map("a".__mul__),
    settings=settings,
    length=st.integers(200, 5000),
)
def test_structured_content_is_there_and_valid_however_much_was_cut(
    properties: dict[str, Any], rows: list[Any], text: str, settings: dict[str, Any], length: int
) -> None:
    schema = {"type": "object", "properties": properties, "required": ["rows", "text"]}
    value = {"rows": rows, "text": text}
    validator = jsonschema_rs.Draft7Validator(schema)
    assume(len(msgspec.json.encode(value)) < MOST_TO_READ)
    desk = Desk(output_schema=schema, **{**settings, "max_string_length": length})
    answer = desk.give(value)
    body = body_of(answer)
    if body["success"]:
        assert validator.is_valid(value)
        assert validator.is_valid(answer["structuredContent"])
        assert answer["structuredContent"] == body["data"]
        assert body["metadata"]["truncated"] is (body["data"] != value)
        assert desk.whole(answer) == value
    elif validator.is_valid(value):
        assert body["error"]["code"] == "OPERATION_FAILED"
        assert body["error"]["context"]["actual"] > body["error"]["context"]["limit"]
        assert desk.whole(answer) == value


@pytest.mark.requirement("INV-MCP-RESP-006")
@given(error=failures, read_only=st.none() | st.booleans(), idempotent=st.none() | st.booleans())
def test_repeating_is_never_advised_after_work_that_may_not_be_repeated(
    error: ToolError, read_only: bool | None, idempotent: bool | None
) -> None:
    told = body_of(Desk(hints=Hints(read_only=read_only, idempotent=idempotent)).fail(error))["error"]
    if told["retryable"]:
        assert isinstance(error, errors.Refused) or read_only or idempotent


@pytest.mark.slow
@given(value=values, limit=limits, dialect=st.sampled_from(["structured", "plain"]))
def test_result_is_an_error_exactly_when_its_answer_would_be_too_large(value: Any, limit: int, dialect: str) -> None:
    whole = Desk(dialect, max_response_bytes=2**30).render(Outcome(value))
    whole.result_type, whole.meta.server_info = "complete", SERVER_INFO
    assert Desk(dialect, max_response_bytes=limit).give(value)["isError"] is (len(msgspec.json.encode(whole)) > limit)
