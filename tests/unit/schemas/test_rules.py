"""What the rules of a schema ask for, in words."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.schemas.rules import explain

SCHEMA: dict[str, Any] = {
    "properties": {
        "a/b": {"properties": {"c": {"minimum": 3}}},
        "list": {"items": {"type": "string", "required": ["x"]}},
        "any": {"anyOf": [{"type": "integer"}, {"type": ["null", "string"]}, {"properties": {"d": {"const": "é"}}}]},
        "map": {"additionalProperties": {"enum": ["p", None]}},
    },
    "required": ["map", "list"],
}


@pytest.mark.parametrize(
    ("path", "keyword", "expected"),
    [
        ("/a~1b/c", "minimum", [("a/b.c", "Input should be greater than or equal to 3", "greater_than_equal")]),
        ("/a~1b/c", "maximum", [("a/b.c", "Input is not valid", "less_than_equal")]),
        ("/list/7", "type", [("list.7", "Input should be a valid string", "string_type")]),
        ("/list/0", "required", [("list.0.x", "Field required", "missing")]),
        ("/any/int", "type", [("any", "Input should be a valid integer or null or string", "int_type")]),
        ("/any/Model/d", "const", [("any.d", 'Input should be "é"', "literal_error")]),
        ("/map/key", "enum", [("map.key", 'Input should be one of "p", null', "enum")]),
        ("", "required", [("map", "Field required", "missing")]),
        ("", "additionalProperties", [("extra", "Extra inputs are not permitted", "extra_forbidden")]),
        ("", "house rule", [("arguments", "Input is not valid", "house rule")]),
        ("/nowhere/at/all", "type", [("nowhere.at.all", "Input is not valid", "type")]),
        ("/list/x", "required", [("list.x", "Field required", "missing")]),
    ],
)
def test_a_rule_is_told_with_its_place_what_it_asks_for_and_its_code(
    path: str, keyword: str, expected: list[tuple[str, str, str]]
) -> None:
    arguments = {"list": [{}], "any": 1, "extra": 1}
    assert list(explain(SCHEMA, arguments, path, keyword)) == expected


def test_without_schema_and_arguments_there_is_still_something_to_say() -> None:
    assert list(explain({}, None, "", "required")) == [("arguments", "Field required", "missing")]
    assert list(explain({}, None, "/a/0", "type")) == [("a.0", "Input is not valid", "type")]
