"""Schemas of modules of any kind: inlined they take the same values, strict they are as strict mode asks."""

from __future__ import annotations

import copy
from typing import Any
from urllib.parse import quote

import jsonschema_rs
import pytest
from apcore import ModuleDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apcore_mcp.adapters.schema import SchemaConverter
from dragoman.schemas.strict import Loss, StrictMode, without_nulls
from tests.support.examples import examples
from tests.support.json_values import json_values
from tests.support.object_schemas import arguments_for, shapes

pytestmark = pytest.mark.slow

NAMES = ["A", "b/c", "d~e", "f g", "h%i", "List[int]"]
KEYS = ["a", "b", "$ref", "default"]
TYPES = ["object", "array", "string", "integer", "null", "boolean"]

values = json_values(
    st.sampled_from([None, True, 0, 1, 7, "", "x", "long enough"]), st.sampled_from(KEYS), max_leaves=6
)


def reference(name: str) -> str:
    return "#/$defs/" + quote(name.replace("~", "~0").replace("/", "~1"), safe="~")


def schemas(names: list[str]) -> st.SearchStrategy[Any]:
    """Schemas that refer to the definitions of these names, beside other things."""
    keywords = {
        "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, unique=True),
        "enum": st.lists(values, min_size=1, max_size=3),
        "minimum": st.integers(0, 5),
        "maxLength": st.integers(0, 5),
        "minItems": st.integers(0, 2),
        "required": st.lists(st.sampled_from(KEYS), unique=True, max_size=2),
        "title": st.just("T"),
        "default": st.just({"$ref": "#/none"}),
    }
    if names:
        keywords["$ref"] = st.sampled_from(names).map(reference)

    def further(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        several = st.lists(inner, min_size=1, max_size=2)
        nested = {
            "properties": st.dictionaries(st.sampled_from(KEYS), inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=1),
            "items": inner,
            "prefixItems": several,
            "contains": inner,
            **dict.fromkeys(("anyOf", "oneOf", "allOf"), several),
            **dict.fromkeys(("not", "if", "then", "else"), inner),
            **dict.fromkeys(("additionalProperties", "unevaluatedProperties", "unevaluatedItems"), inner),
        }
        return st.fixed_dictionaries({}, optional=keywords | nested)

    return st.recursive(st.fixed_dictionaries({}, optional=keywords) | st.booleans(), further, max_leaves=4)


@st.composite
def schemas_with_definitions(draw: st.DrawFn) -> dict[str, Any]:
    """Definitions refer only to those after them, so that there is no circle."""
    names = draw(st.permutations(NAMES))[:3]
    definitions = {name: draw(schemas(names[place + 1 :])) for place, name in enumerate(names)}
    root = draw(schemas(names).filter(lambda schema: isinstance(schema, dict)))
    return {**root, "$defs": definitions}


def descriptor(schema: dict[str, Any]) -> ModuleDescriptor:
    return ModuleDescriptor("m", None, "", None, input_schema=schema, output_schema=schema)


@pytest.mark.requirement("FR-SCHEMA-002")
@given(schemas_with_definitions(), st.lists(values, min_size=1, max_size=5))
def test_without_references_a_schema_takes_what_it_took_with_them(schema: dict[str, Any], values: list[Any]) -> None:
    before = copy.deepcopy(schema)
    inlined = SchemaConverter().convert_output_schema(descriptor(schema))
    assert schema == before
    assert "#/$defs" not in str(inlined)
    written, converted = jsonschema_rs.Draft202012Validator(schema), jsonschema_rs.Draft202012Validator(inlined)
    for value in values:
        assert converted.is_valid(value) == written.is_valid(value)


def parts() -> st.SearchStrategy[dict[str, Any]]:
    """Keywords that mean something else when others stand beside them."""
    simple = st.sampled_from([True, False, {"type": "integer"}, {"type": "string"}])
    applying = [
        "additionalProperties",
        "unevaluatedProperties",
        "items",
        "unevaluatedItems",
        "contains",
        "if",
        "then",
        "else",
    ]
    keywords = {
        "type": st.sampled_from(["object", "array", "integer"]),
        "properties": st.dictionaries(st.sampled_from(["a", "b"]), simple, max_size=2),
        "prefixItems": st.lists(simple, min_size=1, max_size=2),
        "allOf": st.lists(
            st.sampled_from([{"properties": {"a": True}}, {"required": ["b"]}, {"prefixItems": [True]}]), min_size=1
        ),
        "minContains": st.integers(0, 2),
        "required": st.lists(st.sampled_from(["a", "b"]), unique=True),
        "minimum": st.integers(0, 2),
        **dict.fromkeys(applying, simple),
    }
    chosen = st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=3, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: keywords[name] for name in names}))


SMALL = [None, 0, 1, 2, "x"]
OBJECTS = [{}, *({key: value} for key in "abc" for value in (1, "x")), {"a": 1, "b": 1}, {"a": "x", "b": "x", "c": 1}]
ARRAYS = [[], [1], ["x"], [1, 1], [1, "x"], ["x", 1], ["x", "x"], [1, 1, 1], ["x", 1, 1]]


@settings(max_examples=examples(10))
@given(parts(), parts())
def test_what_stands_beside_a_reference_holds_as_well_whatever_it_is(beside: Any, referred: Any) -> None:
    schema = {**beside, "$ref": "#/$defs/A", "$defs": {"A": referred}}
    inlined = SchemaConverter().convert_output_schema(descriptor(schema))
    written, converted = jsonschema_rs.Draft202012Validator(schema), jsonschema_rs.Draft202012Validator(inlined)
    values: list[Any] = [*SMALL, *OBJECTS, *ARRAYS]
    assert [converted.is_valid(value) for value in values] == [written.is_valid(value) for value in values]


def objects_in(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [found for each in schema for found in objects_in(each)]
    if not isinstance(schema, dict):
        return []
    named = [found for each in schema.get("properties", {}).values() for found in objects_in(each)]
    nested = [found for key in ("items", "anyOf", "oneOf", "allOf") for found in objects_in(schema.get(key))]
    return [*named, *nested, *([schema] if "object" in str(schema.get("type")) else [])]


def keywords_in(schema: Any) -> set[str]:
    found: set[str] = set()
    for each in schema if isinstance(schema, list) else [schema]:
        if isinstance(each, dict):
            found |= each.keys()
            for under in each.get("properties", {}).values():
                found |= keywords_in(under)
            for key in ("items", "anyOf", "oneOf", "allOf"):
                found |= keywords_in(each.get(key))
    return found


@pytest.mark.requirement("FR-OPENAI-003", "UC-008")
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(shapes, st.data())
def test_a_strict_schema_is_closed_and_its_arguments_come_back_as_the_module_takes_them(
    schema: dict[str, Any], data: st.DataObject
) -> None:
    before = copy.deepcopy(schema)
    losses: list[Loss] = []
    strict = StrictMode(losses).apply(schema)
    assert schema == before
    for each in objects_in(strict):
        assert each["additionalProperties"] is False
        assert each["required"] == list(each["properties"])
    assert not keywords_in(strict) & {"default", "x-order", "minProperties"}
    assert StrictMode([]).apply(strict) == strict
    value, sent = data.draw(arguments_for(schema))
    assert jsonschema_rs.is_valid(schema, value)
    assert jsonschema_rs.is_valid(strict, sent)
    assert without_nulls(sent, schema) == value
