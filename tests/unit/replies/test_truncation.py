"""What is cut, how far, and what is told about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dragoman.cache.settings import CacheConfig
from dragoman.replies.truncation import MOST_CUTS, Caps, shorten
from tests.support.cost import work_of
from tests.support.desk import Desk, body_of


def cut(value: Any, *, items: int = 100, length: int = 100, suffix: str = "...") -> Any:
    found = shorten(value, Caps(items, items, length), suffix)
    assert found is not None
    return found


def data_of(desk: Desk, value: Any) -> Any:
    return body_of(desk.give(value))["data"]


# Strings and lists


@pytest.mark.requirement("PRD-RESP-06")
@pytest.mark.parametrize(
    ("text", "length", "suffix", "told"),
    [
        ("abcdef", 6, "...", "abcdef"),
        ("abcdefg", 6, "...", "abc..."),
        ("abcdefg", 3, "...", "..."),
        ("abcdefg", 2, "...", ".."),
        ("abcdefg", 5, "", "abcde"),
        ("😀😀😀😀😀", 4, "…", "😀😀😀…"),
        ("😀😀😀😀", 4, "…", "😀😀😀😀"),
    ],
)
def test_long_string_ends_with_the_suffix_which_counts(text: str, length: int, suffix: str, told: str) -> None:
    assert cut(text, length=length, suffix=suffix).value == told
    assert cut({"a": [text]}, length=length, suffix=suffix).value == {"a": [told]}


@pytest.mark.requirement("PRD-RESP-06")
def test_long_list_keeps_its_first_items() -> None:
    found = cut({"a": [1, 2, 3], "b": [[1, 2], [3, 4, 5]]}, items=2)
    assert found.value == {"a": [1, 2], "b": [[1, 2], [3, 4]]}
    assert [(each.path, each.kind, each.total, each.kept) for each in found.cuts] == [
        (("a",), "list", 3, 2),
        (("b", 1), "list", 3, 2),
    ]


def test_the_outermost_cuts_come_first() -> None:
    found = cut({"a": [1, 2, 3], "b": {"c": [4, 5, 6]}, "d": {"e": {"f": [7, 8, 9]}}}, items=2)
    assert [each.path for each in found.cuts] == [("a",), ("b", "c"), ("d", "e", "f")]


def test_every_item_is_looked_at_however_many_there_are() -> None:
    found = cut([*[1] * 5000, "x" * 200, *[1] * 5000, {"a": "x" * 200}], items=20_000)
    assert [each.path for each in found.cuts] == [(5000,), (10_001, "a")]


def test_value_itself_is_left_as_it_is() -> None:
    value = {"a": [1, 2, 3], "b": "x" * 200, "c": {"d": ["y" * 200]}}
    before = {"a": [1, 2, 3], "b": "x" * 200, "c": {"d": ["y" * 200]}}
    assert cut(value, items=2).value != value
    assert value == before


def test_only_so_many_cuts_are_told_one_by_one() -> None:
    assert cut(["x" * 200] * MOST_CUTS).is_told is True
    found = cut(["x" * 200] * (MOST_CUTS + 1))
    assert (len(found.cuts), found.is_told) == (MOST_CUTS, False)


@pytest.mark.slow
def test_depth_is_no_matter() -> None:
    value: Any = ["x" * 200]
    for _ in range(100_000):
        value = [value]
    assert len(cut(value).cuts[0].path) == 100_001


# Whole results


@pytest.mark.requirement("INV-MCP-RESP-004", "PRD-RESP-06")
@pytest.mark.parametrize(
    ("value", "truncated"),
    [
        (list(range(100)), False),
        (list(range(101)), True),
        ("x" * 10_000, False),
        ("x" * 10_001, True),
        ({"a": {"b": ["x" * 10_001]}}, True),
        ({str(n): n for n in range(1000)}, False),
        ([",,,,,,,,,,"] * 90, False),
    ],
)
def test_default_limits_decide_what_is_cut(value: Any, truncated: bool) -> None:
    answer = Desk().give(value)
    assert body_of(answer)["metadata"]["truncated"] is truncated
    assert answer["_meta"].get("dragoman/truncated", False) is truncated


@pytest.mark.requirement("INV-MCP-RESP-003")
def test_rows_that_stay_are_whole_when_there_are_too_many_bytes() -> None:
    rows = [{"id": n, "tags": ["a", "b", "c"], "text": "x" * 40} for n in range(50)]
    kept = data_of(Desk(max_response_bytes=2000), {"rows": rows, "count": 50})
    assert kept["count"] == 50
    assert 1 < len(kept["rows"]) < 50
    assert kept["rows"] == rows[: len(kept["rows"])]


@pytest.mark.requirement("INV-MCP-RESP-003")
def test_strings_are_cut_where_fewer_rows_would_not_be_enough() -> None:
    value = {f"field{n}": "x" * 500 for n in range(10)}
    kept = data_of(Desk(max_response_bytes=2000), value)
    assert kept.keys() == value.keys()
    assert len(set(kept.values())) == 1
    assert kept["field0"].endswith("... [truncated]")


@pytest.mark.requirement("INV-MCP-RESP-003", "INV-MCP-RESP-004")
def test_object_with_too_many_keys_is_an_error_that_can_be_read_part_by_part() -> None:
    value = {f"key-{n}": n for n in range(1000)}
    desk = Desk(max_response_bytes=2000)
    answer = desk.give(value)
    error = body_of(answer)["error"]
    assert (error["code"], error["message"], error["retryable"]) == ("OPERATION_FAILED", "Result too large", False)
    assert (error["context"]["limit"], error["context"]["actual"] > 10_000) == (2000, True)
    assert "dragoman/truncated" not in answer["_meta"]
    assert desk.whole(answer) == value


def test_result_that_fits_into_no_cache_has_no_cursors() -> None:
    desk = Desk(cache=CacheConfig(max_size_bytes=2000))
    answer = desk.give(["x" * 100] * 150)
    assert "continuations" not in body_of(answer)["metadata"]
    assert body_of(answer)["metadata"]["truncated"] is True
    assert "dragoman/nextCursor" not in answer["_meta"]
    refused = Desk(cache=CacheConfig(max_size_bytes=2000), max_response_bytes=2000).give(
        {str(n): n for n in range(999)}
    )
    assert "cursor" not in body_of(refused)["error"]["context"]


# Output schemas


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


@pytest.mark.requirement("PRD-P7")
@pytest.mark.parametrize(
    ("properties", "rows", "text"),
    [
        ({"rows": {"type": "array"}, "text": {"type": "string"}}, 100, 10_000),
        ({"rows": {"minItems": 150}, "text": {"type": "string"}}, 200, 10_000),
        ({"rows": {"type": "array"}, "text": {"minLength": 15_000}}, 100, 20_000),
        ({"rows": {"type": "array"}, "text": {"pattern": "^x*$"}}, 100, 20_000),
        ({"rows": {"minItems": 150}, "text": {"const": "x" * 20_000}}, 200, 20_000),
    ],
)
def test_what_the_schema_does_not_let_be_cut_stays_whole(properties: Any, rows: int, text: int) -> None:
    desk = Desk(output_schema=object_of(**properties))
    answer = desk.give({"rows": [1] * 200, "text": "x" * 20_000})
    data = answer["structuredContent"]
    assert data == body_of(answer)["data"]
    assert (len(data["rows"]), len(data["text"])) == (rows, text)
    assert body_of(answer)["metadata"]["truncated"] is ((rows, text) != (200, 20_000))


@pytest.mark.requirement("PRD-P7", "INV-MCP-RESP-003")
def test_result_whose_schema_does_not_let_it_be_made_to_fit_is_an_error() -> None:
    desk = Desk(output_schema=object_of(text={"pattern": "^x*$"}), max_response_bytes=2000)
    answer = desk.give({"text": "x" * 5000})
    assert body_of(answer)["error"]["code"] == "OPERATION_FAILED"
    assert "structuredContent" not in answer
    assert desk.whole(answer) == {"text": "x" * 5000}


# Cost

LARGE: dict[str, Callable[[], Any]] = {
    "rows": lambda: [{"id": n, "text": "x" * 80} for n in range(1_000)],
    "a string": lambda: "x" * 100_000,
    "numbers": lambda: [[[7] * 100 for _ in range(100)] for _ in range(5)],
    "keys": lambda: {str(n): n for n in range(7_000)},
    "strings": lambda: {str(n): '"' * 500 for n in range(100)},
}


@pytest.mark.slow
@pytest.mark.parametrize("most", [100, 10**9])
@pytest.mark.parametrize("kind", LARGE)
def test_a_large_result_is_made_to_fit_for_a_bounded_cost_per_byte(kind: str, most: int) -> None:
    """It is halved until it fits, and not made shorter step by step."""
    desk = Desk(max_list_items=most, max_string_length=max(most, 10_000), max_response_bytes=20_000)
    value = LARGE[kind]()
    size = len(msgspec.json.encode(value))
    work = work_of(lambda: desk.give(value))
    assert work.lines <= 1.5 * size
    assert work.allocated <= 200 * size
