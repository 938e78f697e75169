"""`@tool`: a function, with its name, docstring and hints, becomes a tool."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pydantic
import pytest

from dragoman import Caller, ToolContext, ToolDefinition, tool
from dragoman.errors import InvalidTool
from dragoman.schemas.schema import DRAFT_2020_12
from dragoman.testing import SequentialIds, open_server
from dragoman.tools.tool import Hints, tool_of


async def call(made: Any, arguments: dict[str, Any] | None = None) -> Any:
    """What the tool answers when it is called the way everything is called."""
    async with open_server([made], ids=SequentialIds()) as server:
        return (await server.runtime.call(tool_of(made).definition.name, arguments, caller=Caller("ada"))).unwrap()


@pytest.mark.requirement("FND-REG-01")
def test_name_description_and_schema_come_from_the_function() -> None:
    @tool
    def add(a: int) -> int:
        """Adds.

        Indented as usual.
        """
        return a

    assert repr(tool_of(add)) == "Tool('add')"
    assert tool_of(add).definition == ToolDefinition(
        name="add",
        from_hints=True,
        description="Adds.\n\nIndented as usual.",
        input_schema={
            "$schema": DRAFT_2020_12,
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        output_schema={
            "$schema": DRAFT_2020_12,
            "type": "object",
            "properties": {"result": {"type": "integer"}},
            "required": ["result"],
        },
    )


def test_everything_can_be_said_explicitly() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}

    @tool(
        name="math/add",
        description="Adds two numbers.",
        title="Addition",
        version="2.1",
        category="query",
        timeout_ms=50,
        read_only=True,
        destructive=False,
        idempotent=True,
        open_world=False,
        input_schema=schema,
        output_schema={"type": "object"},
    )
    def add(a: int) -> None:
        """Ignored."""

    assert tool_of(add).definition == ToolDefinition(
        name="math/add",
        description="Adds two numbers.",
        input_schema=schema,
        version="2.1",
        title="Addition",
        output_schema={"type": "object"},
        hints=Hints(read_only=True, destructive=False, idempotent=True, open_world=False),
        category="query",
        timeout_ms=50,
    )


def test_a_listing_shows_what_clients_need_and_leaves_out_what_says_nothing() -> None:
    def bare(): ...  # type: ignore[no-untyped-def]

    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert tool_of(tool(bare)).definition.listing() == {"name": "bare", "description": "", "inputSchema": schema}

    @tool(title="Full", version="1", timeout_ms=5, category="query", read_only=True, destructive=False)
    def full() -> dict[str, int]:
        """Everything."""
        return {}

    assert tool_of(full).definition.listing() == {
        "name": "full",
        "title": "Full",
        "description": "Everything.",
        "inputSchema": schema,
        "outputSchema": {"type": "object", "additionalProperties": {"type": "integer"}},
        "annotations": {"readOnlyHint": True, "destructiveHint": False},
        "version": "1",
    }


def test_a_schema_that_is_handed_in_is_listed_as_draft_07() -> None:
    @tool(input_schema={"type": "object"}, output_schema={"type": "object"})
    def f() -> None: ...

    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    assert tool_of(f).definition.listing() == {
        "name": "f",
        "description": "",
        "inputSchema": schema,
        "outputSchema": schema,
    }


async def test_sync_functions_run_on_a_thread_and_async_ones_on_the_event_loop() -> None:
    here = threading.get_ident()

    @tool
    def sync() -> bool:
        return threading.get_ident() == here

    @tool
    async def on_loop() -> bool:
        return threading.get_ident() == here

    assert (tool_of(sync).is_async, tool_of(on_loop).is_async) == (False, True)
    assert (await call(sync), await call(on_loop)) == (False, True)


@pytest.mark.requirement("FND-REG-15")
async def test_the_context_is_found_by_its_type_whatever_it_is_called() -> None:
    @tool
    def last(x: int, anything: ToolContext) -> str:
        return f"{x} {anything.run_id} {anything.caller.name}"

    @tool
    async def first(whatever: ToolContext, x: int) -> str:
        return f"{x} {whatever.run_id} {whatever.caller.name}"

    @tool
    async def keyword(x: int, *, ctx: ToolContext) -> str:
        return f"{x} {ctx.run_id} {ctx.caller.name}"

    for made in (last, first, keyword):
        assert tool_of(made).wants_context
        assert list(tool_of(made).definition.input_schema["properties"]) == ["x"]
        assert await call(made, {"x": 7}) == "7 run-1 ada"


async def test_a_function_without_a_context_is_not_given_one() -> None:
    @tool
    def context(context: str) -> str:
        return context

    assert not tool_of(context).wants_context
    assert await call(context, {"context": "mine"}) == "mine"


async def test_defaults_are_the_functions_own() -> None:
    marker = object()

    @tool
    def f(a: int, b: int = 2, c: Any = marker) -> list[bool | int]:
        return [a, b, c is marker]

    assert await call(f, {"a": 1}) == [1, 2, True]
    assert await call(f, {"a": 1, "b": 3, "c": None}) == [1, 3, False]


class Color(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


class Item(pydantic.BaseModel):
    price: int
    bought: datetime


@pytest.mark.requirement("FND-CALL-10")
async def test_handlers_receive_instances_of_what_they_asked_for() -> None:
    seen: list[Any] = []

    @tool
    def f(point: Point, when: datetime, color: Color, items: list[Item]) -> None:
        seen.extend([point, when, color, items])

    moment = "2024-01-15T10:30:00Z"
    await call(f, {"point": {"x": 1}, "when": moment, "color": "red", "items": [{"price": 2, "bought": moment}]})
    when = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)
    assert seen == [Point(1, 0), when, Color.RED, [Item(price=2, bought=when)]]


async def test_a_whole_number_written_with_a_fraction_arrives_as_an_integer() -> None:
    @tool
    def kind(n: int) -> str:
        return f"{type(n).__name__} {n}"

    async with open_server([kind]) as server:
        client = await server.client()
        client.send(
            b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"kind","arguments":{"n":1.0}}}\n'
        )
        result = (await client.answer("a"))["result"]
    assert result["content"] == [{"type": "text", "text": "int 1"}]


async def test_a_function_with_unusual_hints_can_bring_its_own_schema() -> None:
    @tool(input_schema={"type": "object", "properties": {"z": {"type": "number"}}, "required": ["z"]})
    def f(z: complex) -> float:
        return abs(z)

    assert await call(f, {"z": -2}) == 2


@pytest.mark.parametrize("name", ["no spaces", ""])
async def test_a_name_that_cannot_be_used_is_refused_when_the_tool_is_registered(name: str) -> None:
    @tool(name=name)
    def f() -> None: ...

    with pytest.raises(InvalidTool, match="name: must be 1 to 128 letters"):
        async with open_server([f]):
            pass
