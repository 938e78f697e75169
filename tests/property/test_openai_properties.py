"""Native tools of any schema and any name as OpenAI tools: strict schemas obey OpenAI's rules, and calls come back."""

from __future__ import annotations

import asyncio
import enum
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import jsonschema_rs
import msgspec
import pytest
from apcore import Registry
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

import dragoman
from apcore_mcp import call_openai_tool as call_module
from dragoman import ToolDefinition, call_openai_tool, define_tool, openai_tools, tool
from dragoman.openai import Remark
from dragoman.testing import open_server
from tests.support.json_values import json_values
from tests.support.object_schemas import arguments_for, shapes

pytestmark = pytest.mark.slow

KNOWN = {
    "anyOf",
    "const",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "multipleOf",
    "pattern",
    "title",
    "type",
}
OF_OBJECTS = {"properties", "required", "additionalProperties"}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}


def breaches(schema: Any, place: str = "") -> Iterator[str]:
    """The rules of strict mode that a schema breaks, as OpenAI documents them."""
    if not isinstance(schema, dict):
        yield f"{place}: not an object"
        return
    types = schema.get("type", [])
    is_object = "object" in ([types] if isinstance(types, str) else types)
    unknown = schema.keys() - KNOWN - (OF_OBJECTS if is_object else set())
    if unknown:
        yield f"{place}: {sorted(unknown)}"
    if schema.keys().isdisjoint({"type", "enum", "const", "anyOf"}):
        yield f"{place}: no type"
    if "format" in schema and schema["format"] not in FORMATS:
        yield f"{place}: format {schema['format']}"
    if "array" in types and "items" not in schema:
        yield f"{place}: no items"
    if is_object:
        if schema.get("additionalProperties") is not False:
            yield f"{place}: open"
        if sorted(schema.get("required", [])) != sorted(schema.get("properties", {"missing": 0})):
            yield f"{place}: not all properties are required"
        for name, under in schema.get("properties", {}).items():
            yield from breaches(under, f"{place}/{name}")
    if "items" in schema:
        yield from breaches(schema["items"], f"{place}/items")
    for number, under in enumerate(schema.get("anyOf", ())):
        yield from breaches(under, f"{place}/{number}")


def check_strict(tool: Any) -> bool:
    """Whether the tool is strict, and then obeys the rules; if it is not, the report says so."""
    report: list[Remark] = []
    [made] = openai_tools(tool, strict=True, api="responses", report=report)
    if made["strict"]:
        assert list(breaches(made["parameters"])) == []
        assert (made["parameters"]["type"], "anyOf" in made["parameters"]) == ("object", False)
        assert not any(remark.message.startswith("not strict") for remark in report)
        return True
    assert report
    assert all(remark.message.startswith("not strict: ") for remark in report)
    assert [made] == openai_tools(tool, api="responses")
    return False


def tool_of_schema(schema: dict[str, Any], name: str = "a.tool") -> Any:
    definition = ToolDefinition(name=name, description="", input_schema=schema)
    return define_tool(definition, lambda arguments, _: arguments)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(shapes, st.booleans(), st.data())
def test_a_strict_schema_obeys_the_rules_and_its_arguments_arrive_as_the_tool_takes_them(
    shape: dict[str, Any], is_required: bool, data: st.DataObject
) -> None:
    schema = {"type": "object", "properties": {"p": shape}, "required": ["p"] if is_required else []}
    value, sent = data.draw(arguments_for(schema))
    made = tool_of_schema(schema)
    if check_strict(made):
        [function] = openai_tools(made, strict=True, api="responses")
        assert jsonschema_rs.is_valid(function["parameters"], sent)

    async def call() -> Any:
        async with dragoman.open([made]) as runtime:
            call = {"call_id": "1", "type": "function_call", "name": "a-tool", "arguments": json.dumps(sent)}
            return await call_openai_tool(runtime, call)

    assert json.loads(asyncio.run(call())["output"]) == value


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


@dataclass
class Point:
    x: int
    y: float = 0
    names: list[str] = field(default_factory=list)


class Options(TypedDict, total=False):
    colour: Colour
    at: Point


class Pair(NamedTuple):
    one: int
    two: str


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


class Model(BaseModel):
    text: str = Field(examples=["x"], min_length=1, pattern="^x")
    point: Point | None = None
    tags: set[str] = set()
    when: datetime | date | None = None


@pytest.mark.parametrize(
    ("hint", "is_strict"),
    [
        (int, True),
        (str | None, True),
        (Annotated[int, msgspec.Meta(ge=1, le=10, examples=[3])], True),
        (Literal["a", 1], True),
        (Colour, True),
        (list[Point], True),
        (Options, True),
        (Circle | Square, True),
        (Model, True),
        (set[UUID], True),
        (datetime, True),
        (Decimal, True),
        (bytes, True),
        (bool | list[Colour | None], True),
        (Any, False),
        (list, False),
        (dict[str, int], False),
        (tuple[int, str], False),
        (Pair, False),
    ],
)
@pytest.mark.parametrize("is_optional", [False, True])
def test_a_tool_of_any_type_is_strict_by_the_rules_or_reported(hint: Any, is_strict: bool, is_optional: bool) -> None:
    def function(p: Any = None) -> None: ...

    if not is_optional:
        function.__defaults__ = None
    function.__annotations__ = {"p": hint | None if is_optional and hint is not Any else hint, "return": None}
    assert check_strict(tool(function)) is is_strict


tool_names = st.text("ab./-", min_size=1, max_size=4) | st.text("a.", min_size=60, max_size=70)


@given(st.sets(tool_names, min_size=1, max_size=8))
@example({"a.b", "a-b", "c"})
@example({"a" * 64, "a" * 65, "a" * 66})
def test_each_function_name_leads_to_its_own_tool_and_every_other_tool_is_reported(found: set[str]) -> None:
    tools = [tool_of_schema({"type": "object"}, name) for name in sorted(found)]
    report: list[Remark] = []
    names = [each["function"]["name"] for each in openai_tools(tools, report=report)]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)
    reported = [remark.tool for remark in report]
    listed = [name for name in sorted(found) if name not in reported]

    async def call_each() -> list[str]:
        async with open_server(tools, has_health=False) as server:
            assert [each["function"]["name"] for each in openai_tools(server.runtime)] == names
            for name in names:
                await call_openai_tool(server.runtime, {"id": "1", "function": {"name": name, "arguments": "{}"}})
            assert {record["outcome"] for record in server.records} <= {"success"}
            return [record["toolName"] for record in server.records]

    assert asyncio.run(call_each()) == listed


texts = st.text(st.characters(), max_size=10)  # With halves of surrogate pairs.
anything = json_values(st.none() | st.integers() | st.floats() | texts, texts, max_leaves=8)
sent_arguments = texts | anything | anything.map(json.dumps) | st.sampled_from(["{", "{}", "NaN", '{"a": 1e999}', "[]"])
parts = {"name": st.sampled_from(["count", "image-resize", ""]) | anything, "arguments": sent_arguments}
sent_calls = st.one_of(
    anything,
    st.fixed_dictionaries({"id": anything, "function": anything | st.fixed_dictionaries({}, optional=parts)}),
    st.fixed_dictionaries({"type": st.just("function_call"), "call_id": anything}, optional=parts),
)


deep = {"name": "count", "arguments": f'{{"to": {"[" * 800}{"]" * 800}}}'}


@given(sent_calls)
@example({"id": "1", "function": deep})
@example({"type": "function_call", "call_id": "1", **deep})
def test_whatever_a_model_sends_is_answered_with_one_message(sent: Any) -> None:
    @tool
    def count(to: int = 3) -> int:
        """Counts."""
        return to

    async def call() -> Any:
        async with open_server([count], has_health=False) as server:
            answer = await call_openai_tool(server.runtime, sent)
            assert len(server.records) == 1
            return answer, await call_module(Registry(), sent)

    for message in asyncio.run(call()):
        if isinstance(sent, dict) and sent.get("type") == "function_call":
            assert message.keys() == {"type", "call_id", "output"}
        else:
            assert {key: type(value) for key, value in message.items()} == {
                "role": str,
                "tool_call_id": str,
                "content": str,
            }
