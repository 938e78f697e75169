"""Schemas of modules, without references."""

from __future__ import annotations

import copy
import json
from datetime import datetime
from typing import Annotated, Any, Literal

import pytest
from apcore import ModuleDescriptor
from pydantic import BaseModel, Field

from apcore_mcp.adapters.schema import SchemaConverter
from dragoman.schemas.references import DEEPEST_REFERENCE

converter = SchemaConverter()


def descriptor(input_schema: dict[str, Any], output_schema: dict[str, Any] | None = None) -> ModuleDescriptor:
    return ModuleDescriptor(
        module_id="a.module",
        name=None,
        description="",
        documentation=None,
        input_schema=input_schema,
        output_schema=output_schema or {},
    )


def convert(schema: dict[str, Any]) -> dict[str, Any]:
    before = copy.deepcopy(schema)
    converted = converter.convert_input_schema(descriptor(schema))
    assert schema == before
    return converted


def of(property: Any, **definitions: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": property}, "$defs": definitions}


def inlined(property: Any, **definitions: Any) -> Any:
    converted = convert(of(property, **definitions))
    assert converted.keys() == {"type", "properties"}
    return converted["properties"]["p"]


class Colour(BaseModel):
    """How it looks."""

    name: Literal["red", "green"] = "red"
    at: datetime | None = None


class Shape(BaseModel):
    main: Colour = Field(description="the main one")
    others: list[Colour] = []
    by_name: dict[str, Colour] = {}
    one: Colour | int | None = None


@pytest.mark.requirement("FR-SCHEMA-001", "FR-SCHEMA-003")
@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, {"type": "object", "properties": {}}),
        ({"properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"type": "object", "properties": {}}, {"type": "object", "properties": {}}),
        ({"type": "object"}, {"type": "object"}),
        ({"$defs": {}}, {"type": "object", "properties": {}}),
        (
            {"title": "T", "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"title": "T", "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        ),
    ],
)
def test_the_root_is_an_object_and_keeps_what_it_has(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert convert(schema) == expected


@pytest.mark.requirement("FR-SCHEMA-003")
@pytest.mark.parametrize(
    "schema", [{"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "object", "title": "Empty"}]
)
def test_a_schema_of_an_object_stays_as_it_is(schema: dict[str, Any]) -> None:
    assert converter._ensure_object_type(schema) == schema


@pytest.mark.requirement("FR-SCHEMA-001", "FR-SCHEMA-003")
@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, {"type": "object", "properties": {}}),
        ({"type": "array", "title": "All"}, {"type": "object", "properties": {}, "title": "All"}),
        ({"type": ["object", "null"]}, {"type": "object", "properties": {}}),
        ({"type": None}, {"type": "object", "properties": {}}),
        ({"type": "string", "properties": {"a": {}}}, {"type": "object", "properties": {"a": {}}}),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "number"}}}, {"type": "object", "properties": {}}),
    ],
)
def test_a_root_of_another_type_becomes_an_object(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert convert(schema) == expected


@pytest.mark.requirement("FR-SCHEMA-001", "FR-SCHEMA-002")
def test_a_pydantic_model_is_written_out() -> None:
    converted = convert(Shape.model_json_schema())
    colour = {
        "title": "Colour",
        "description": "How it looks.",
        "type": "object",
        "properties": {
            "name": {"default": "red", "enum": ["red", "green"], "title": "Name", "type": "string"},
            "at": {
                "anyOf": [{"format": "date-time", "type": "string"}, {"type": "null"}],
                "default": None,
                "title": "At",
            },
        },
    }
    assert converted == {
        "title": "Shape",
        "type": "object",
        "required": ["main"],
        "properties": {
            "main": {**colour, "description": "the main one"},
            "others": {"default": [], "items": colour, "title": "Others", "type": "array"},
            "by_name": {"additionalProperties": colour, "default": {}, "title": "By Name", "type": "object"},
            "one": {"anyOf": [colour, {"type": "integer"}, {"type": "null"}], "default": None, "title": "One"},
        },
    }


@pytest.mark.requirement("FR-SCHEMA-002")
@pytest.mark.parametrize("keyword", ["oneOf", "anyOf", "allOf", "prefixItems"])
def test_references_in_lists_of_schemas_are_followed(keyword: str) -> None:
    assert inlined({keyword: [{"$ref": "#/$defs/A"}, {"type": "null"}]}, A={"type": "string"}) == {
        keyword: [{"type": "string"}, {"type": "null"}]
    }


@pytest.mark.requirement("FR-SCHEMA-002")
@pytest.mark.parametrize("keyword", ["items", "additionalProperties", "not", "if", "contains", "propertyNames"])
def test_references_in_single_schemas_are_followed(keyword: str) -> None:
    assert inlined({keyword: {"$ref": "#/$defs/A"}}, A={"type": "string"}) == {keyword: {"type": "string"}}


@pytest.mark.requirement("FR-SCHEMA-002")
def test_older_definitions_are_followed_and_removed_as_well() -> None:
    schema = {"properties": {"p": {"$ref": "#/definitions/A"}}, "definitions": {"A": {"type": "string"}}}
    assert convert(schema) == {"type": "object", "properties": {"p": {"type": "string"}}}


@pytest.mark.requirement("FR-SCHEMA-002")
def test_each_place_has_a_copy_of_its_own() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/A"}, "c": {"enum": [["x"]]}},
        "$defs": {"A": {"enum": [["x"]]}},
    }
    converted = convert(schema)
    converted["properties"]["a"]["enum"][0].append("changed")
    converted["properties"]["c"]["enum"][0].append("changed")
    assert converted["properties"]["b"] == {"enum": [["x"]]}
    assert schema["$defs"]["A"] == schema["properties"]["c"] == {"enum": [["x"]]}


@pytest.mark.requirement("FR-SCHEMA-002")
def test_what_only_looks_like_a_reference_or_a_definition_stays() -> None:
    schema = {
        "type": "object",
        "properties": {
            "$ref": {"type": "string"},
            "$defs": {"type": "string", "default": {"$ref": "#/$defs/No"}},
            "definitions": {"const": {"$defs": 1}, "examples": [{"$ref": "x"}]},
        },
        "required": ["$ref"],
    }
    assert convert(schema) == schema


@pytest.mark.parametrize(
    ("pointer", "definition"),
    [("a~1b", "a/b"), ("a~0b", "a~b"), ("a~01", "a~1"), ("a%20b", "a b"), ("List%5Bint%5D", "List[int]"), ("", "")],
)
def test_names_in_pointers_may_be_escaped(pointer: str, definition: str) -> None:
    assert inlined({"$ref": f"#/$defs/{pointer}"}, **{definition: {"type": "string"}}) == {"type": "string"}


def test_any_place_in_the_schema_can_be_referred_to() -> None:
    schema = {
        "properties": {
            "a": {"anyOf": [{"type": "null"}, {"type": "string"}]},
            "b": {"$ref": "#/properties/a/anyOf/1"},
        }
    }
    assert convert(schema)["properties"]["b"] == {"type": "string"}


def test_remarks_beside_a_reference_have_the_last_word() -> None:
    beside = {"$ref": "#/$defs/A", "description": "mine", "default": 1, "x-note": "n"}
    definition = {"type": "integer", "description": "theirs", "title": "A"}
    assert inlined(beside, A=definition) == {
        "type": "integer",
        "description": "mine",
        "title": "A",
        "default": 1,
        "x-note": "n",
    }


def test_rules_beside_a_reference_hold_as_well() -> None:
    assert inlined({"$ref": "#/$defs/A", "minimum": 1}, A={"type": "integer"}) == {"type": "integer", "minimum": 1}
    assert inlined({"$ref": "#/$defs/A", "minimum": 1, "title": "T"}, A={"minimum": 5}) == {
        "minimum": 1,
        "title": "T",
        "allOf": [{"minimum": 5}],
    }
    closed = {"properties": {"a": {}}, "additionalProperties": False}
    assert inlined({"$ref": "#/$defs/A", "properties": {"b": {}}}, A=closed) == {
        "properties": {"b": {}},
        "allOf": [closed],
    }
    assert inlined({"$ref": "#/$defs/A", "allOf": [{"minimum": 1}], "type": "integer"}, A={"type": "number"}) == {
        "type": "integer",
        "allOf": [{"minimum": 1}, {"type": "number"}],
    }


def test_in_older_drafts_rules_beside_a_reference_do_not_hold() -> None:
    schema = {**of({"$ref": "#/$defs/A", "minimum": 1, "title": "T"}, A={"type": "integer"})}
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    assert convert(schema)["properties"]["p"] == {"type": "integer", "title": "T"}


@pytest.mark.parametrize(
    ("definition", "alone", "with_a_remark"),
    [(True, True, {"title": "T"}), (False, False, {"not": {}, "title": "T"})],
)
def test_a_definition_may_be_a_boolean(definition: bool, alone: Any, with_a_remark: Any) -> None:
    assert inlined({"$ref": "#/$defs/A"}, A=definition) is alone
    assert inlined({"$ref": "#/$defs/A", "title": "T"}, A=definition) == with_a_remark


def test_the_root_may_be_a_reference() -> None:
    model = {"type": "object", "properties": {"a": {"type": "integer"}}, "title": "A"}
    assert convert({"$ref": "#/$defs/A", "$defs": {"A": model}}) == model


@pytest.mark.requirement("FR-SCHEMA-001", "FR-SCHEMA-002")
@pytest.mark.parametrize(
    ("definitions", "circle"),
    [
        ({"A": {"$ref": "#/$defs/A"}}, "A -> A"),
        ({"A": {"items": {"$ref": "#/$defs/B"}}, "B": {"anyOf": [{"$ref": "#/$defs/A"}]}}, "A -> B -> A"),
        ({"A": {"$ref": "#/$defs/B"}, "B": {"properties": {"n": {"$ref": "#/$defs/B"}}}}, "B -> B"),
        ({"A": {"$ref": "#/properties/p"}}, "A -> #/properties/p -> A"),
        ({"A": {"not": {"$ref": "#"}}}, "A -> # -> A"),
    ],
)
def test_a_circle_is_named(definitions: dict[str, Any], circle: str) -> None:
    with pytest.raises(ValueError, match=f"^Circular reference: {circle}$"):
        convert(of({"$ref": "#/$defs/A"}, **definitions))


def test_a_model_that_holds_itself_is_refused_by_name() -> None:
    class Node(BaseModel):
        children: list[Node]

    Node.model_rebuild(_types_namespace={"Node": Node})
    with pytest.raises(ValueError, match="Circular reference: Node -> Node"):
        convert(Node.model_json_schema())


@pytest.mark.requirement("FR-SCHEMA-001")
@pytest.mark.parametrize("reference", ["#/$defs/Gone", "#/definitions/Gone"])
def test_a_missing_definition_is_named(reference: str) -> None:
    with pytest.raises(KeyError) as raised:
        convert(of({"$ref": reference}, A={}))
    assert raised.value.args == ("Gone",)


def chain(length: int) -> dict[str, Any]:
    links = {f"D{i}": {"items": {"$ref": f"#/$defs/D{i + 1}"}} for i in range(1, length)}
    return of({"$ref": "#/$defs/D1"}, **links, **{f"D{length}": {"type": "integer"}})


@pytest.mark.requirement("FR-SCHEMA-001", "FR-SCHEMA-002")
def test_references_lead_through_thirty_two_others_and_no_more() -> None:
    assert DEEPEST_REFERENCE == 32
    innermost = convert(chain(32))["properties"]["p"]
    for _ in range(31):
        innermost = innermost["items"]
    assert innermost == {"type": "integer"}
    with pytest.raises(ValueError, match="Maximum recursion depth of 32 references exceeded"):
        convert(chain(33))


@pytest.mark.slow
def test_definitions_that_double_each_other_are_refused_before_they_fill_the_memory() -> None:
    levels = {
        f"D{i}": {"properties": {"a": {"$ref": f"#/$defs/D{i + 1}"}, "b": {"$ref": f"#/$defs/D{i + 1}"}}}
        for i in range(30)
    }
    with pytest.raises(ValueError, match="References bring in more than 1000000 characters"):
        convert(of({"$ref": "#/$defs/D0"}, **levels, D30={"type": "integer"}))


def test_a_long_definition_may_not_be_repeated_without_end_but_may_be_written_out() -> None:
    long = {"description": "x" * 100_000}
    with pytest.raises(ValueError, match="References bring in more than"):
        convert(of({"anyOf": [{"$ref": "#/$defs/A"}] * 10}, A=long))
    assert len(convert(of({"anyOf": [long] * 20}))["properties"]["p"]["anyOf"]) == 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "leaf",
    [
        {"properties": {f"p{i}": {} for i in range(200)}},
        {"anyOf": [{} for _ in range(200)]},
        {"enum": [[] for _ in range(200)]},
        {"default": {f"k{i}": {} for i in range(200)}},
    ],
)
def test_names_and_what_is_empty_count_too(leaf: dict[str, Any]) -> None:
    levels = {f"D{i}": {"allOf": [{"$ref": f"#/$defs/D{i + 1}"}] * 2} for i in range(13)}
    with pytest.raises(ValueError, match="References bring in more than"):
        convert(of({"$ref": "#/$defs/D0"}, **levels, D13=leaf))


def test_a_schema_nested_beyond_reason_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="nested too deeply"):
        converter.convert_input_schema(descriptor(schema))
    while schema:  # Piece by piece, or freeing it would be as deep.
        schema = schema.pop("items")


@pytest.mark.parametrize(
    "reference", ["https://example.com/a.json", "a.json#/$defs/A", "file:///etc/passwd", "#anchor", 7, None]
)
def test_references_that_leave_the_schema_are_refused(reference: Any) -> None:
    with pytest.raises(ValueError, match="is not one within the schema"):
        convert(of({"$ref": reference}))


@pytest.mark.parametrize("keyword", ["$dynamicRef", "$recursiveRef"])
def test_references_that_depend_on_who_refers_are_refused(keyword: str) -> None:
    with pytest.raises(ValueError, match="cannot be inlined"):
        convert(of({keyword: "#A"}))


def test_a_reference_to_what_is_no_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="leads to what is no schema"):
        convert(of({"$ref": "#/properties/p/$ref"}))


@pytest.mark.requirement("FR-SCHEMA-005")
def test_the_result_s_schema_is_converted_alike_and_none_stays_none() -> None:
    schema = of({"$ref": "#/$defs/A"}, A={"type": "string"})
    assert converter.convert_output_schema(descriptor({}, schema)) == {
        "type": "object",
        "properties": {"p": {"type": "string"}},
    }
    assert converter.convert_output_schema(descriptor({}, {})) == {}
    assert converter.convert_output_schema(descriptor({}, {"anyOf": [{}]})) == {"anyOf": [{}]}
    with pytest.raises(ValueError, match="Circular reference: A -> A"):
        converter.convert_output_schema(descriptor({}, of({"$ref": "#/$defs/A"}, A={"$ref": "#/$defs/A"})))


@pytest.mark.requirement("FR-SCHEMA-006", "SRS-API-09")
@pytest.mark.parametrize(
    "property",
    [
        *({"type": name} for name in ("string", "integer", "number", "boolean", "array", "object", "null")),
        {"type": ["string", "null"]},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        {"type": "object", "properties": {"deep": {"type": "object", "properties": {"er": {"type": "null"}}}}},
        {"enum": ["a", 1, None, 1.5, True]},
        {"const": {"a": [1]}},
        {"type": "string", "format": "date-time", "default": "now", "description": "when"},
        {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
        {"if": {"type": "integer"}, "then": {"minimum": 1}, "else": True},
    ],
)
def test_what_has_no_reference_passes_as_it_is(property: dict[str, Any]) -> None:
    assert inlined(property) == property
    assert inlined({"$ref": "#/$defs/A"}, A=property) == property


@pytest.mark.requirement("NFR-SEC-003")
def test_what_is_sensitive_is_not_told_in_a_tool_s_definition() -> None:
    field = {"type": "string", "x-sensitive": True, "default": "hunter2", "examples": ["hunter3"], "x-order": 1}
    assert inlined(field) == {"type": "string", "x-order": 1}
    assert inlined({"$ref": "#/$defs/A", "x-sensitive": True}, A={"default": "hunter2"}) == {}
    assert inlined({"type": "string", "x-sensitive": False, "default": "d"}) == {"type": "string", "default": "d"}


@pytest.mark.requirement("NFR-SEC-003")
def test_nor_is_it_told_by_what_holds_it_or_by_what_it_holds() -> None:
    class Login(BaseModel):
        password: str = Field("hunter2", json_schema_extra={"x-sensitive": True})

    class Input(BaseModel):
        login: Login = Login()
        others: list[Login] = Field([Login()], examples=[[{"password": "hunter2"}]])
        token: Annotated[str, Field(json_schema_extra={"x-sensitive": True})] | None = "hunter2"
        page: int = 1

    properties = convert(Input.model_json_schema())["properties"]
    assert "hunter2" not in json.dumps(properties)
    assert properties["page"]["default"] == 1
    holds = {"x-sensitive": True, "properties": {"pin": {"type": "string", "default": "hunter2"}}}
    assert inlined({**holds, "type": "object"}) == {"type": "object", "properties": {"pin": {"type": "string"}}}
    assert inlined({"$ref": "#/$defs/A", "x-sensitive": True}, A=holds) == {"properties": {"pin": {"type": "string"}}}
