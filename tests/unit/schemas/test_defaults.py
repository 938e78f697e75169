"""Defaults that are fields mean what an annotation with the same field means."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import Field

from dragoman import prompt, tool
from dragoman.errors import InvalidOffer, InvalidTool
from dragoman.testing import open_server
from dragoman.tools.tool import tool_of


def by_default(
    required: int = Field(..., ge=1, description="How many"),
    bare: int = Field(le=9),
    text: str = Field("x", max_length=3, title="Text", examples=["y"]),
    made: list[int] = Field(default_factory=list),  # noqa: B008
    extra: int | None = Field(None, json_schema_extra={"x-unit": "kg"}),
) -> list[Any]:
    return [required, bare, text, made, extra]


def by_annotation(
    required: Annotated[int, Field(ge=1, description="How many")],
    bare: Annotated[int, Field(le=9)],
    text: Annotated[str, Field(max_length=3, title="Text", examples=["y"])] = "x",
    made: Annotated[list[int], Field(default_factory=list)] = ...,  # type: ignore[assignment]
    extra: Annotated[int | None, Field(json_schema_extra={"x-unit": "kg"})] = None,
) -> list[Any]:
    return [required, bare, text, made, extra]


def by_msgspec(
    text: str = msgspec.field(default="x"),
    made: list[int] = msgspec.field(default_factory=list),  # noqa: B008
) -> list[Any]:
    return [text, made]


def by_dataclasses(
    text: str = dataclasses.field(default="x"),
    made: list[int] = dataclasses.field(default_factory=list),  # noqa: B008
) -> list[Any]:
    return [text, made]


def test_a_field_as_default_and_in_an_annotation_give_the_same_schema() -> None:
    schema = dict(tool_of(tool(by_default)).definition.input_schema)
    annotated = dict(tool_of(tool(by_annotation)).definition.input_schema)
    assert schema["properties"] == {
        "required": {"type": "integer", "minimum": 1, "description": "How many"},
        "bare": {"type": "integer", "maximum": 9},
        "text": {"type": "string", "maxLength": 3, "title": "Text", "examples": ["y"], "default": "x"},
        "made": {"type": "array", "items": {"type": "integer"}},
        "extra": {"anyOf": [{"type": "integer"}, {"type": "null"}], "x-unit": "kg", "default": None},
    }
    assert schema["properties"] == annotated["properties"]
    assert schema["required"] == ["required", "bare"]


async def test_the_function_gets_the_value_and_never_the_field() -> None:
    async with open_server([tool(by_default), tool(by_msgspec), tool(by_dataclasses)]) as server:
        call = server.runtime.call
        first = (await call("by_default", {"required": 1, "bare": 2})).unwrap()
        assert first == [1, 2, "x", [], None]
        second = (await call("by_default", {"required": 1, "bare": 2, "text": "y", "made": [3]})).unwrap()
        assert second == [1, 2, "y", [3], None]
        assert (await call("by_default", {"required": 1, "bare": 2})).unwrap()[3] is not first[3]
        assert (await call("by_msgspec")).unwrap() == ["x", []]
        assert (await call("by_dataclasses")).unwrap() == ["x", []]


async def test_a_default_in_an_annotated_field_counts() -> None:
    @tool
    def f(a: Annotated[int, Field(3, ge=1)]) -> int:
        return a

    assert tool_of(f).definition.input_schema["required"] == []
    assert tool_of(f).definition.input_schema["properties"]["a"]["default"] == 3
    async with open_server([f]) as server:
        assert (await server.runtime.call("f")).unwrap() == 3


async def test_constraints_of_a_field_hold() -> None:
    async with open_server([tool(by_default)]) as server:
        outcome = await server.runtime.call("by_default", {"required": 0, "bare": 10, "text": "long"})
    assert [each["path"] for each in outcome.error.details["errors"]] == ["/required", "/bare", "/text"]


def aliased(a: int = Field(alias="b")) -> None: ...
def renamed(a: int = Field(1, validation_alias="b")) -> None: ...
def annotated(a: Annotated[int, Field(alias="b")]) -> None: ...
def named(a: int = msgspec.field(name="b")) -> None: ...


@pytest.mark.parametrize("function", [aliased, renamed, annotated, named])
def test_an_alias_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidTool, match="a: a field's alias is not supported; rename the parameter"):
        tool(function)
    with pytest.raises(InvalidOffer, match="a: a field's alias is not supported; rename the parameter"):
        prompt(function)
