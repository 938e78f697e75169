"""What no tool can be made of is refused when it is decorated, with what to do about it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pydantic
import pytest

from dragoman import ToolContext, prompt, tool
from dragoman.errors import InvalidOffer, InvalidTool
from dragoman.testing import open_server
from dragoman.tools.tool import tool_of


class Kind:
    def __call__(self) -> None: ...

    def method(self, a: int) -> int:
        return a

    @staticmethod
    def static(a: int) -> int:
        return a

    @classmethod
    def of_class(cls, a: int) -> str:
        return f"{cls.__name__} {a}"


class Calls(pydantic.BaseModel):
    back: Callable[[], int]


def generates() -> Iterator[int]:
    yield 1


async def generates_later() -> AsyncIterator[int]:
    yield 1


def variable(*args: int) -> None: ...
def keywords(**kwargs: int) -> None: ...
def positional(a: int, /) -> None: ...
def unresolvable(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def unknown(a: Kind) -> None: ...
def undescribed(a: Calls) -> None: ...
def own(self, a: int) -> None: ...  # type: ignore[no-untyped-def]


METHOD = "a method has no object to be called on; decorate it where there is one: tool(thing.method)"


@pytest.mark.parametrize(
    ("value", "place", "reason"),
    [
        (Kind, "", "it is a class; decorate a function that returns one"),
        (Kind(), "", "it is a Kind; wrap it in a function with type hints"),
        (functools.partial(own, 1), "", "it is a partial; wrap it in a function with type hints"),
        (7, "", "it is not a function"),
        (Kind.method, "self", METHOD),
        (own, "self", METHOD),
        (Kind.__dict__["static"], "", "@tool is above @staticmethod; put it below"),
        (Kind.__dict__["of_class"], "", "@tool is above @classmethod; use tool(Class.method)"),
        (generates, "", "it yields, and a call has one result; return a list, and tell progress with"),
        (generates_later, "", "it yields, and a call has one result; return a list, and tell progress with"),
        (variable, "args", "a tool's parameters must be passable by name, one by one"),
        (keywords, "kwargs", "a tool's parameters must be passable by name, one by one"),
        (positional, "a", "a tool's parameters must be passable by name, one by one"),
        (unresolvable, "", "its type hints cannot be read: name 'Nowhere' is not defined"),
        (unknown, "a", "Kind has no JSON form; annotate it otherwise, or pass input_schema"),
        (undescribed, "a", "Cannot generate a JsonSchema for"),
        (lambda: 1, "", "a lambda has no name; pass name, or write a function"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_with_what_to_do(value: Any, place: str, reason: str) -> None:
    with pytest.raises(InvalidTool) as refused:
        tool(value)
    ((path, message),) = refused.value.problems
    assert path == place
    assert message.startswith(reason)


@pytest.mark.parametrize("value", [Kind, generates, variable, Kind.method])
def test_what_cannot_be_a_prompt_is_refused_too(value: Any) -> None:
    with pytest.raises(InvalidOffer):
        prompt(name="x")(value)


class Shop:
    @staticmethod
    @tool
    def add(a: int, b: int) -> int:
        return a + b


async def test_static_and_class_methods_and_methods_of_an_object_can_be_tools() -> None:
    of_class, method = tool(Kind.of_class), tool(Kind().method)
    named = tool(name="named")(lambda a: a)
    async with open_server([Shop.add, of_class, method, named]) as server:
        call = server.runtime.call
        assert (await call("add", {"a": 1, "b": 2})).unwrap() == Shop.add(1, 2) == 3
        assert (await call("of_class", {"a": 1})).unwrap() == of_class(1) == "Kind 1"
        assert (await call("method", {"a": 1})).unwrap() == method(1) == 1
        assert (await call("named", {"a": 1})).unwrap() == 1


async def test_a_parameter_named_self_is_a_parameter_if_it_has_a_hint() -> None:
    @tool
    def take(self: int) -> int:
        return self

    async with open_server([take]) as server:
        assert (await server.runtime.call("take", {"self": 7})).unwrap() == 7


async def test_a_parameter_without_a_hint_takes_any_json_value() -> None:
    @tool
    def give(a, ctx: ToolContext, b=None):  # type: ignore[no-untyped-def]
        return [a, b]

    schema = tool_of(give).definition.input_schema
    assert (schema["properties"], schema["required"]) == ({"a": {}, "b": {"default": None}}, ["a"])
    async with open_server([give]) as server:
        for value in ("x", 1, None, [1], {"a": 1}):
            assert (await server.runtime.call("give", {"a": value})).unwrap() == [value, None]


def wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    def outer(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return outer


def test_a_decorator_that_hides_the_signature_is_refused() -> None:
    with pytest.raises(InvalidTool, match="args: a tool's parameters must be passable by name"):

        @tool
        @wrapping
        def f(a: int) -> int:
            return a
