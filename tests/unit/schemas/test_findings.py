"""What clients are told about arguments that do not fit: what is missing, meant or wanted."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import InvalidArgument
from dragoman.schemas.findings import with_place
from dragoman.schemas.schema import DRAFT_2020_12, compile_schema

ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
    "required": ["street"],
    "additionalProperties": False,
}
SCHEMA = {
    "$schema": DRAFT_2020_12,
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/Address"},
        "many": {"type": "array", "items": {"$ref": "#/$defs/Address"}},
        "age": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "place": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Address"}, {"type": "array", "minItems": 2}]},
        "a/b": {"type": "integer"},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"Address": ADDRESS},
}


def found(arguments: Any, schema: Any = SCHEMA) -> dict[str, str]:
    with pytest.raises(InvalidArgument) as refused:
        compile_schema(schema).check(arguments)
    errors: Any = (refused.value.details or {})["errors"]
    return {each["path"]: each["message"] for each in errors}


def test_a_missing_argument_is_named_where_it_should_be() -> None:
    assert found({}) == {"/name": "name is required"}
    assert found({"name": "a", "address": {}}) == {"/address/street": "address.street is required"}
    assert found({"name": "a", "many": [{"street": "b"}, {}]}) == {"/many/1/street": "many.1.street is required"}


def test_a_misspelt_argument_names_the_nearest_one() -> None:
    assert found({"nmae": "a"}) == {
        "/name": "name is required",
        "/nmae": "unknown argument `nmae`; did you mean `name`?",
    }
    assert found({"name": "a", "address": {"street": "b", "ctiy": "c"}}) == {
        "/address/ctiy": "unknown argument `address.ctiy`; did you mean `address.city`?"
    }
    assert found({"name": "a", "zzz": 1}) == {"/zzz": "unknown argument `zzz`"}


def test_alternatives_that_are_types_are_one_sentence() -> None:
    assert found({"name": "a", "age": "old"}) == {"/age": 'the value is not of type "integer" or "null"'}


def test_each_alternative_says_what_it_wanted() -> None:
    assert found({"name": "a", "place": {"stret": "b"}})["/place"] == (
        'the value fits none of the alternatives: it is not of type "string" or "array"; or '
        "unknown argument `place.stret`; did you mean `place.street`?, place.street is required"
    )
    assert found({"name": "a", "place": []})["/place"] == (
        'the value fits none of the alternatives: it is not of type "string" or "object"; or '
        "the value has less than 2 items"
    )


def test_a_value_that_fits_several_alternatives_of_one_is_said_so() -> None:
    schema = {"$schema": DRAFT_2020_12, "properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}
    assert "more than one" in found({"a": 3}, schema)["/a"]


def test_nothing_of_a_value_is_repeated_however_deep_the_alternatives_are() -> None:
    nested: Any = {"type": "object", "properties": {"x": {"type": "string", "maxLength": 3, "enum": ["a"]}}}
    for _ in range(6):
        nested = {"anyOf": [{"type": "integer"}, {"type": "object", "properties": {"x": nested}}, nested]}
    schema = {"$schema": DRAFT_2020_12, "type": "object", "properties": {"a": nested}}
    (message,) = found({"a": {"x": "my-s3cret-value"}}, schema).values()
    assert "my-s3cret-value" not in message


@pytest.mark.parametrize("size", [1, 1000])
def test_messages_and_findings_are_bounded(size: int) -> None:
    schema = {
        "$schema": DRAFT_2020_12,
        "type": "object",
        "properties": {"a": {"anyOf": [{"enum": ["x" * size, str(number)]} for number in range(50)]}},
        "additionalProperties": False,
    }
    message = found({"a": 1}, schema)["/a"]
    assert len(message) <= 500
    assert "more alternatives" in message or size > 1
    errors = found({f"{number:02}" + "n" * 10_000: 1 for number in range(100)}, schema)
    assert len(errors) == 20
    assert max(map(len, errors.values())) < 200
    assert max(map(len, errors)) <= 500


def test_an_alternative_names_two_of_its_unknown_arguments() -> None:
    place = {f"stret{number}": 1 for number in range(50)}
    assert found({"name": "a", "place": place})["/place"] == (
        'the value fits none of the alternatives: it is not of type "string" or "array"; or '
        "unknown argument `place.stret0`; did you mean `place.street`?, "
        "unknown argument `place.stret1`; did you mean `place.street`?, and more"
    )


def test_a_line_for_a_person_names_the_place_once() -> None:
    lines = [
        with_place({"path": path, "message": message}) for path, message in found({"nmae": "a", "age": "b"}).items()
    ]
    assert sorted(lines) == [
        '/age: the value is not of type "integer" or "null"',
        "name is required",
        "unknown argument `nmae`; did you mean `name`?",
    ]
    assert with_place({"path": "", "message": "is wrong"}) == "is wrong"
    assert with_place({"path": "/a", "message": "A good name is required"}) == "/a: A good name is required"
    assert with_place({"path": "/a~1b", "message": "a/b is required"}) == "a/b is required"


LARGE = {"name": "a", "many": [{"street": "b"}] * 3, "place": [1]}


def test_of_a_large_value_the_alternatives_are_not_tried_one_by_one() -> None:
    with pytest.raises(InvalidArgument) as refused:
        compile_schema(SCHEMA).check(LARGE, thorough=False)
    said = {"path": "/place", "message": "the value fits none of the alternatives"}
    assert (refused.value.details or {})["errors"] == [said]


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_a_schema_that_refers_to_an_alternative_is_checked_as_it_is(keyword: str) -> None:
    schema = {
        "properties": {
            "a": {keyword: [{"type": "integer"}, {"type": "null"}]},
            "b": {"$ref": f"#/properties/a/{keyword}/0"},
        }
    }
    validator = compile_schema({"type": "object", **schema})
    validator.check({"a": None, "b": 1}, thorough=False)
    with pytest.raises(InvalidArgument):
        validator.check({"b": None}, thorough=False)
