"""Schemas: which draft holds, what is refused, and what type hints turn into."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pydantic
import pytest

from dragoman import Image, Text, ToolContext, tool
from dragoman.errors import InternalFailure, InvalidArgument, InvalidTool
from dragoman.schemas.schema import DRAFT_07, DRAFT_2020_12, compile_schema, listed_schema
from dragoman.tools.tool import tool_of


def refusal(check: Callable[[], Any]) -> list[dict[str, str]]:
    with pytest.raises(InvalidArgument) as refused:
        check()
    assert refused.value.message == "Arguments do not match the tool's schema"
    assert refused.value.details.keys() == {"errors"}
    return refused.value.details["errors"]


# Which draft

TUPLE = {"type": "object", "properties": {"pair": {"items": [{"type": "integer"}, {"type": "string"}]}}}
PREFIX = {"type": "object", "properties": {"pair": {"prefixItems": [{"type": "integer"}]}}}


@pytest.mark.requirement("FND-REG-10")
def test_a_schema_that_names_no_draft_is_draft_07() -> None:
    compile_schema(TUPLE).check({"pair": [1, "x"]})
    assert [error["path"] for error in refusal(lambda: compile_schema(TUPLE).check({"pair": ["x", 1]}))] == [
        "/pair/0",
        "/pair/1",
    ]
    compile_schema(PREFIX).check({"pair": ["not looked at"]})


@pytest.mark.requirement("FND-REG-10")
@pytest.mark.parametrize("draft", [DRAFT_07, "http://json-schema.org/draft-07/schema"])
def test_a_schema_may_name_draft_07(draft: str) -> None:
    compile_schema({"$schema": draft, **PREFIX}).check({"pair": ["not looked at"]})
    refusal(lambda: compile_schema({"$schema": draft, **TUPLE}).check({"pair": ["x"]}))


def test_a_schema_may_name_another_draft() -> None:
    refusal(lambda: compile_schema({"$schema": DRAFT_2020_12, **PREFIX}).check({"pair": ["x"]}))
    with pytest.raises(ValueError, match="not of types"):
        compile_schema({"$schema": DRAFT_2020_12, **TUPLE})


@pytest.mark.requirement("FND-REG-10")
def test_the_draft_is_stated_to_clients_unless_it_is_the_one_they_assume() -> None:
    assert listed_schema({"type": "object"}) == {"$schema": DRAFT_07, "type": "object"}
    assert listed_schema({"$schema": DRAFT_07, "type": "object"}) == {"$schema": DRAFT_07, "type": "object"}
    assert listed_schema({"$schema": DRAFT_2020_12, "type": "object"}, is_own=False) == {"type": "object"}
    own = {"$schema": DRAFT_2020_12, "type": "object"}
    assert listed_schema(own) == own
    draft_04 = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "object"}
    assert listed_schema(draft_04) == draft_04


def test_stating_the_draft_does_not_change_the_schema_that_was_given() -> None:
    given = {"type": "object"}
    listed_schema(given)
    assert given == {"type": "object"}


# References

LOCAL = {"type": "object", "properties": {"a": {"$ref": "#/definitions/n"}}, "definitions": {"n": {"type": "integer"}}}


def test_references_within_the_schema_are_followed() -> None:
    compile_schema(LOCAL).check({"a": 1})
    refusal(lambda: compile_schema(LOCAL).check({"a": "x"}))


@pytest.mark.parametrize("draft", [DRAFT_07, DRAFT_2020_12])
def test_a_reference_to_a_file_is_refused_though_the_file_would_do(tmp_path: Path, draft: str) -> None:
    (tmp_path / "there.json").write_text('{"type": "integer"}')
    uri = (tmp_path / "there.json").as_uri()
    with pytest.raises(ValueError, match=r"there\.json"):
        compile_schema({"$schema": draft, "type": "object", "properties": {"a": {"$ref": uri}}})


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "{url}"}}},
        {"$schema": DRAFT_2020_12, "properties": {"a": {"$ref": "{url}"}}},
        {"$schema": DRAFT_2020_12, "properties": {"a": {"$dynamicRef": "{url}"}}},
        {"$schema": "{url}"},
        {"$id": "{url}", "properties": {"a": {"$ref": "neighbour"}}},
        {"properties": {"a": {"$ref": "#/definitions/b"}}, "definitions": {"b": {"$ref": "{url}"}}},
    ],
)
def test_a_reference_to_another_machine_is_refused_and_nothing_is_fetched(schema: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        text = msgspec.json.encode({"type": "object", **schema}).replace(b"{url}", b"http://127.0.0.1:%d/x" % port)
        with pytest.raises(ValueError, match=r"127\.0\.0\.1"):
            compile_schema(msgspec.json.decode(text))
        with pytest.raises(BlockingIOError):
            server.accept()


# What clients are told about arguments that do not fit

CLOSED = {
    "type": "object",
    "properties": {"list": {"type": "array", "items": {"type": "integer"}}, "name": {"maxLength": 3}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_every_problem_is_reported_with_where_it_is() -> None:
    found = refusal(lambda: compile_schema(CLOSED).check({"list": [1, "two", "three"], "other": 1}))
    assert sorted(found, key=lambda error: (error["path"], error["message"])) == [
        {"path": "/list/1", "message": 'the value is not of type "integer"'},
        {"path": "/list/2", "message": 'the value is not of type "integer"'},
        {"path": "/name", "message": "name is required"},
        {"path": "/other", "message": "unknown argument `other`"},
    ]


def test_a_value_can_be_checked_without_a_search_for_what_is_wrong() -> None:
    validator = compile_schema({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert [validator.allows(value) for value in ({"a": 1}, {"a": "x"}, {"a": object()}, {1: 2})] == [
        True,
        False,
        False,
        False,
    ]


def test_the_number_of_reported_problems_is_limited() -> None:
    found = refusal(lambda: compile_schema(CLOSED).check({"name": "x", "list": ["bad"] * 1000}))
    assert len(found) == 20


HIDING = [
    {"type": "integer"},
    {"const": 1},
    {"enum": [1, 2]},
    {"format": "email"},
    {"pattern": "^x"},
    {"maxLength": 1},
    {"maxItems": 1, "uniqueItems": True},
    {"maxProperties": 0},
    {"not": {}},
    False,
    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    {"oneOf": [{"type": "integer"}, {"type": "null"}]},
    {"allOf": [{"type": "integer"}]},
    {"if": {"minLength": 1}, "then": {"type": "integer"}},
    {"items": {"type": "integer"}, "type": ["array", "integer"]},
    {"additionalProperties": {"type": "integer"}, "type": ["object", "integer"]},
    {"contains": {"type": "integer"}},
]


def found_by(schema: Any, value: Any) -> list[dict[str, str]]:
    try:
        compile_schema({"type": "object", "properties": {"a": schema}}).check({"a": value})
    except InvalidArgument as error:
        return error.details["errors"]
    return []


@pytest.mark.parametrize("schema", HIDING, ids=str)
def test_values_are_never_repeated(schema: Any) -> None:
    found = [
        error for value in ("hunter2", ["hunter2", "hunter2"], {"k": "hunter2"}) for error in found_by(schema, value)
    ]
    assert found
    assert all(error.keys() == {"path", "message"} for error in found)
    assert "hunter2" not in str(found)


@pytest.mark.parametrize("value", [{1: 2}, {"a": {1: 2}}, {"a": object()}])
def test_what_is_not_json_does_not_fit_any_schema(value: Any) -> None:
    (found,) = refusal(lambda: compile_schema({"type": "object", "required": ["b"]}).check(value))
    assert found["path"] == ""


# Type hints


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Address(TypedDict):
    street: str


class Size(msgspec.Struct):
    width: int


class Item(pydantic.BaseModel):
    price: int


class Order(pydantic.BaseModel):
    items: list[Item]
    due: datetime


class Tree(pydantic.BaseModel):
    children: list[Tree] = []


def input_of(function: Callable[..., Any]) -> dict[str, Any]:
    schema = dict(tool_of(tool(function)).definition.input_schema)
    assert schema.pop("$schema") == DRAFT_2020_12
    return schema


def property_of(function: Callable[..., Any]) -> Any:
    ((_, schema),) = input_of(function)["properties"].items()
    return schema


def test_parameters_become_the_properties_of_a_closed_object() -> None:
    def f(a: str, b: int = 3, *, c: bool) -> None: ...

    assert input_of(f) == {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer", "default": 3}, "c": {"type": "boolean"}},
        "required": ["a", "c"],
        "additionalProperties": False,
    }


def test_plain_types_have_plain_schemas() -> None:
    def f(
        text: str,
        whole: int,
        number: float,
        flag: bool,
        anything: list,
        numbers: list[int],
        object: dict,
        counts: dict[str, int],
        either: int | None,
        old: Optional[int],  # noqa: UP045
    ) -> None: ...

    assert input_of(f)["properties"] == {
        "text": {"type": "string"},
        "whole": {"type": "integer"},
        "number": {"type": "number"},
        "flag": {"type": "boolean"},
        "anything": {"type": "array"},
        "numbers": {"type": "array", "items": {"type": "integer"}},
        "object": {"type": "object"},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "old": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }


def test_choices_are_enums() -> None:
    def f(literal: Literal["a", "b"], color: Color = Color.RED) -> None: ...

    schema = input_of(f)
    assert schema["properties"] == {
        "literal": {"enum": ["a", "b"]},
        "color": {"$ref": "#/$defs/Color", "default": "red"},
    }
    assert schema["$defs"] == {"Color": {"title": "Color", "enum": ["blue", "red"]}}


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (Point, {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}}),
        (Address, {"street": {"type": "string"}}),
        (Size, {"width": {"type": "integer"}}),
    ],
)
def test_records_are_objects_of_their_fields(kind: type, schema: dict[str, Any]) -> None:
    def f(value: Any) -> None: ...

    f.__annotations__["value"] = kind
    required = [next(iter(schema))]
    assert input_of(f) == {
        "type": "object",
        "properties": {"value": {"$ref": f"#/$defs/{kind.__name__}"}},
        "required": ["value"],
        "additionalProperties": False,
        "$defs": {
            kind.__name__: {"title": kind.__name__, "type": "object", "properties": schema, "required": required},
        },
    }


def test_a_moment_is_a_string() -> None:
    def f(when: datetime) -> None: ...

    assert property_of(f)["type"] == "string"


def test_a_model_brings_its_own_schema_and_those_of_the_models_in_it() -> None:
    def f(order: Order) -> None: ...

    schema = input_of(f)
    assert schema["properties"]["order"] == {
        "title": "Order",
        "type": "object",
        "properties": {
            "items": {"title": "Items", "type": "array", "items": {"$ref": "#/$defs/Item"}},
            "due": {"title": "Due", "type": "string", "format": "date-time"},
        },
        "required": ["items", "due"],
    }
    assert schema["$defs"] == {
        "Item": {
            "title": "Item",
            "type": "object",
            "properties": {"price": {"title": "Price", "type": "integer"}},
            "required": ["price"],
        }
    }


def test_a_model_that_contains_itself_can_be_used() -> None:
    def f(tree: Tree) -> None: ...

    validator = compile_schema(tool_of(tool(f)).definition.input_schema)
    validator.check({"tree": {"children": [{"children": []}]}})
    assert refusal(lambda: validator.check({"tree": {"children": [{"children": 1}]}}))[0]["path"] == (
        "/tree/children/0/children"
    )


ByName = pydantic.create_model("Part", name=(str, ...))
ByNumber = pydantic.create_model("Part", number=(int, ...))
Named = pydantic.create_model("Named", part=(ByName, ...))
Numbered = pydantic.create_model("Numbered", part=(ByNumber, ...))


def test_models_that_share_a_name_keep_their_own_schemas() -> None:
    def f(a: Named, b: Numbered) -> None: ...

    compile_schema(tool_of(tool(f)).definition.input_schema).check(
        {"a": {"part": {"name": "x"}}, "b": {"part": {"number": 1}}}
    )


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (
            Annotated[int, msgspec.Meta(ge=1, description="how many")],
            {"type": "integer", "minimum": 1, "description": "how many"},
        ),
        (
            Annotated[int, pydantic.Field(ge=1, lt=9, description="how many")],
            {"type": "integer", "minimum": 1, "exclusiveMaximum": 9, "description": "how many"},
        ),
        (
            Annotated[float, pydantic.Field(gt=0, le=1, multiple_of=0.5)],
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "multipleOf": 0.5},
        ),
        (
            Annotated[str, pydantic.Field(min_length=1, max_length=3, pattern="^a")],
            {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "^a"},
        ),
        (
            Annotated[list[int], pydantic.Field(min_length=1, max_length=3)],
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        ),
        (Annotated[int, msgspec.Meta(ge=1), "both"], {"type": "integer", "minimum": 1, "description": "both"}),
        (Annotated[int, object()], {"type": "integer"}),
        (
            Annotated[int, pydantic.Field(ge=1)] | None,
            {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
        ),
        (list[Annotated[str, "a word"]], {"type": "array", "items": {"type": "string", "description": "a word"}}),
    ],
)
def test_annotations_describe_and_constrain(hint: Any, schema: dict[str, Any]) -> None:
    def f(value: Any) -> None: ...

    f.__annotations__["value"] = hint
    assert property_of(f) == schema


def test_a_parameter_without_a_hint_takes_anything() -> None:
    def f(value) -> None: ...  # type: ignore[no-untyped-def]

    assert property_of(f) == {}
    validator = compile_schema(tool_of(tool(f)).definition.input_schema)
    for value in (None, 1, "x", [1], {"a": 1}):
        validator.check({"value": value})


def test_unknown_arguments_are_refused() -> None:
    def f(a: int = 1) -> None: ...

    assert refusal(lambda: compile_schema(tool_of(tool(f)).definition.input_schema).check({"b": 1})) == [
        {"path": "/b", "message": "unknown argument `b`"}
    ]


def test_a_default_that_has_no_json_form_makes_the_parameter_optional_all_the_same() -> None:
    def f(a: Any = print) -> None: ...

    assert input_of(f) == {
        "type": "object",
        "properties": {"a": {}},
        "required": [],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("hint", [dict[str, int], Point, Address, Size, Item])
def test_an_object_result_has_an_output_schema(hint: Any) -> None:
    def f() -> None: ...

    f.__annotations__["return"] = hint
    schema = tool_of(tool(f)).definition.output_schema
    assert schema is not None
    assert (schema["$schema"], schema["type"]) == (DRAFT_2020_12, "object")
    compile_schema(schema)


class Branch(msgspec.Struct):
    children: list[Branch]


@pytest.mark.parametrize(
    ("hint", "value"), [(Tree, {"children": [{"children": []}]}), (Branch, {"children": [{"children": []}]})]
)
def test_a_result_that_contains_itself_has_an_output_schema(hint: Any, value: Any) -> None:
    def f() -> None: ...

    f.__annotations__["return"] = hint
    validator = compile_schema(tool_of(tool(f)).definition.output_schema or {})
    validator.check(value)
    refusal(lambda: validator.check({"children": [{"children": 1}]}))


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (None, {"type": "null"}),
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Color, {"title": "Color", "enum": ["blue", "red"]}),
        (datetime, {"type": "string"}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (Path, {"type": "string", "format": "path"}),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (Size | None, {"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]}),
    ],
)
def test_any_other_result_is_described_under_the_key_result(hint: Any, schema: dict[str, Any]) -> None:
    def f() -> None: ...

    f.__annotations__["return"] = hint
    described = dict(tool_of(tool(f)).definition.output_schema or {})
    compile_schema(described)
    described.pop("$defs", None)
    expected = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    assert described == {"$schema": DRAFT_2020_12, **expected}


@pytest.mark.parametrize(
    "hint", [Any, object, int | Any, Image, list[Image], str | Image, list[Text | Image] | None, complex, ToolContext]
)
def test_a_result_that_may_be_anything_or_has_no_schema_has_none(hint: Any) -> None:
    def f() -> None: ...

    f.__annotations__["return"] = hint
    assert tool_of(tool(f)).definition.output_schema is None


def test_a_result_without_a_hint_has_no_output_schema() -> None:
    assert tool_of(tool(name="f")(lambda: 1)).definition.output_schema is None


# What cannot be a tool


def positional_only(first: int, /) -> None: ...


def variable(*rest: int) -> None: ...


def keywords(**others: int) -> None: ...


def positional_context(context: ToolContext, /) -> None: ...


def variable_context(*contexts: ToolContext) -> None: ...


@pytest.mark.parametrize(
    ("function", "parameter"),
    [
        (positional_only, "first"),
        (variable, "rest"),
        (keywords, "others"),
        (positional_context, "context"),
        (variable_context, "contexts"),
    ],
)
def test_a_parameter_that_cannot_be_passed_by_name_is_refused_by_name(
    function: Callable[..., Any], parameter: str
) -> None:
    with pytest.raises(InvalidTool) as refused:
        tool(function)
    assert refused.value.name == function.__name__
    assert refused.value.problems == ((parameter, "a tool's parameters must be passable by name, one by one"),)


def test_a_type_without_a_json_form_is_refused_and_the_parameter_named() -> None:
    def f(fine: int, voltage: complex) -> None: ...

    with pytest.raises(InvalidTool, match="complex has no JSON form") as refused:
        tool(f)
    assert "voltage" in str(refused.value)


def test_hints_that_cannot_be_read_are_refused() -> None:
    def f(value: NotDefinedAnywhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(InvalidTool, match="'NotDefinedAnywhere' is not defined"):
        tool(f)


# Conversion


@tool
def typed(
    point: Point | None = None,
    when: datetime | None = None,
    color: Color | None = None,
    order: Order | None = None,
    size: Size | None = None,
    moments: list[datetime] | None = None,
) -> None: ...


def test_handlers_get_what_their_hints_promise() -> None:
    due = "2024-01-15T10:30:00Z"
    moment = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)
    converted = tool_of(typed).convert(
        {
            "point": {"x": 1},
            "when": due,
            "color": "blue",
            "order": {"items": [{"price": 2}], "due": due},
            "size": {"width": 3},
            "moments": [due],
        }
    )
    assert converted == {
        "point": Point(1, 0),
        "when": moment,
        "color": Color.BLUE,
        "order": Order(items=[Item(price=2)], due=moment),
        "size": Size(3),
        "moments": [moment],
    }


def test_only_what_was_given_is_converted_so_that_the_functions_own_defaults_hold() -> None:
    assert tool_of(typed).convert({"color": "red"}) == {"color": Color.RED}


def test_arguments_that_are_plain_json_are_not_converted_at_all() -> None:
    def f(a: str, b: bool, c: dict, d: list, e: Any, g: str | None = None, h: Annotated[str, "text"] = "") -> None: ...

    assert tool_of(tool(f)).convert is None


def test_conversion_does_not_change_the_arguments_that_it_is_given() -> None:
    given = {"point": {"x": 1}}
    tool_of(typed).convert(given)
    assert given == {"point": {"x": 1}}


@pytest.mark.parametrize(
    ("hint", "given", "taken"),
    [
        (int, 1.0, 1),
        (int, 2**70, 2**70),
        (list[int], [1.0, 2], [1, 2]),
        (int | None, 1.0, 1),
        (dict[str, int], {"a": 1.0}, {"a": 1}),
        (Literal[1, 2], 1.0, 1),
        (float, 1, 1.0),
    ],
)
def test_a_number_without_a_fraction_is_an_integer_however_it_is_written(hint: Any, given: Any, taken: Any) -> None:
    def f(value: Any) -> None: ...

    f.__annotations__["value"] = hint
    made = tool(f)
    compile_schema(tool_of(made).definition.input_schema).check({"value": given})
    converted = tool_of(made).convert({"value": given})
    assert repr(converted) == repr({"value": taken})


@pytest.mark.parametrize("count", [1, 1.0])
def test_an_exception_of_an_argument_type_is_a_failure_of_the_tool(count: float) -> None:
    @dataclasses.dataclass
    class Stubborn:
        def __post_init__(self) -> None:
            raise RuntimeError

    def f(count: Any, thing: Any) -> None: ...

    f.__annotations__ |= {"count": int, "thing": Stubborn}
    made = tool(f)
    with pytest.raises(InternalFailure):
        tool_of(made).convert({"count": count, "thing": {}})


def test_what_cannot_be_converted_is_refused_with_where_it_is() -> None:
    assert refusal(lambda: tool_of(typed).convert({"when": "soon"})) == [
        {"path": "/when", "message": "Invalid RFC3339 encoded datetime"}
    ]
    (found,) = refusal(lambda: tool_of(typed).convert({"moments": ["2024-01-15T10:30:00Z", "soon"]}))
    assert found["path"] == "/moments/1"


@pytest.mark.parametrize(
    "arguments",
    [
        {"when": "hunter2"},
        {"color": "hunter2"},
        {"order": {"items": [], "due": "hunter2"}},
        {"order": {"items": [{"price": "hunter2"}], "due": "2024-01-15T10:30:00Z"}},
        {"point": {"x": "hunter2"}},
    ],
)
def test_conversion_never_repeats_a_value_either(arguments: dict[str, Any]) -> None:
    (found,) = refusal(lambda: tool_of(typed).convert(arguments))
    assert found["path"].startswith(f"/{next(iter(arguments))}")
    assert found["message"]
    assert "hunter2" not in str(found)
