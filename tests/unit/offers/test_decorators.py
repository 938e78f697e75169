"""`@resource` and `@prompt`: what is made of a function, and what is refused."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from dragoman import Prompt, Resource, ToolContext, prompt, resource
from dragoman.errors import InvalidOffer
from dragoman.offers.catalogue import Offered, offered_by
from dragoman.offers.resource import text_resource
from dragoman.testing import open_server
from dragoman.tools.tool import is_tool_name


def made(function: Offered) -> Any:
    (offer,) = offered_by(function)
    return offer


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int


def test_a_resource_is_listed_with_what_its_function_says() -> None:
    @resource("config://app")
    def app_config() -> str:
        """The settings."""
        return ""

    offer = made(app_config)
    assert isinstance(offer, Resource)
    assert not offer.is_template
    assert offer.listing() == {"uri": "config://app", "name": "app_config", "description": "The settings."}


def test_a_resource_is_listed_with_what_the_decorator_says() -> None:
    notes = resource("note://{id}", name="notes", title="Notes", description="All.", mime_type="text/markdown")
    offer = made(notes(lambda id: id))
    assert offer.is_template
    assert offer.listing() == {
        "uriTemplate": "note://{id}",
        "name": "notes",
        "title": "Notes",
        "description": "All.",
        "mimeType": "text/markdown",
    }


def test_a_prompt_is_listed_with_its_arguments() -> None:
    @prompt
    def review(code: Annotated[str, "What to look at"], ctx: ToolContext, language: str = "python") -> str:
        """Reviews code."""
        return code

    assert isinstance(made(review), Prompt)
    assert made(review).listing() == {
        "name": "review",
        "description": "Reviews code.",
        "arguments": [
            {"name": "code", "required": True, "description": "What to look at"},
            {"name": "language", "required": False},
        ],
    }


def test_a_prompt_without_arguments_and_words_is_listed_by_name_alone() -> None:
    @prompt(name="a/b", title="AB")
    def anything() -> str:
        return ""

    assert made(anything).listing() == {"name": "a/b", "title": "AB"}


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (str, "7", "7"),
        (str, "true", "true"),
        (int, "7", 7),
        (int, "-7", -7),
        (int, "7.5", "7.5"),
        (int, "seven", "seven"),
        (int, "[7]", "[7]"),
        (int, "9" * 65, "9" * 65),
        (int, "\ud800", "\ud800"),
        (float, "7.5", 7.5),
        (float, "7", 7),
        (float, "NaN", "NaN"),
        (float, "1e999", "1e999"),
        (bool, "true", True),
        (bool, "True", "True"),
        (bool, "1", "1"),
        (int | None, "7", 7),
        (int | None, "null", "null"),
        (int | str, "7", "7"),
        (Literal["a", "b"], "a", "a"),
        (Literal[1, 2], "2", 2),
        (Colour, "red", "red"),
        (Annotated[int, msgspec.Meta(ge=5)], "7", 7),
        (Annotated[int, msgspec.Meta(ge=5)], "3", "3"),
        (Any, "7", "7"),
    ],
)
def test_text_is_read_as_its_type_hint_has_it_or_left_to_be_refused(hint: Any, text: str, value: Any) -> None:
    def ask(argument: Any) -> str:
        return ""

    ask.__annotations__["argument"] = hint
    read = made(prompt(ask)).parameters["argument"].read(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("hint", "choices"),
    [
        (str, ()),
        (int, ()),
        (bool, ("true", "false")),
        (Literal["b", "a", None], ("a", "b")),
        (Literal[2, 1], ("1", "2")),
        (Colour, ("red",)),
        (Colour | int, ("red",)),
        (bool | None, ("true", "false")),
    ],
)
def test_a_hint_that_names_every_value_is_what_a_client_can_choose_from(hint: Any, choices: tuple[str, ...]) -> None:
    parameter = made(prompt(wants(hint))).parameters["argument"]
    assert parameter.choices == choices
    assert all(isinstance(parameter.read(each), bool | int | str) for each in choices)


def wants(hint: Any) -> Any:
    def ask(argument: Any) -> str:
        return ""

    ask.__annotations__["argument"] = hint
    return ask


def many(*arguments: str) -> str:
    return ""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: resource("no scheme")(lambda: ""), "resource 'no scheme' cannot be registered: uri: must be a URI"),
        (lambda: resource("x:{a}{b}")(lambda a, b: ""), "text between two variables"),
        (lambda: resource("x:{a}")(lambda: ""), "a: is in the URI, but not a parameter"),
        (lambda: resource("x:y")(lambda a: ""), "a: is not in the URI"),
        (lambda: resource("x:y")(lambda a=1: ""), "a: is not in the URI"),
        (lambda: resource("x:{argument}")(wants(list[str])), "argument: its arguments come as text"),
        (lambda: resource("x:y", timeout_ms=0)(lambda: ""), "timeout_ms: must be at least 1"),
        (lambda: resource("x:y")(5), "must be a function"),  # type: ignore[arg-type]
        (lambda: resource("x:{a}", complete={"b": []})(lambda a: ""), "b: cannot be completed"),
        (lambda: prompt(many), "passable by name"),
        (lambda: prompt(lambda: ""), "prompt '<lambda>' cannot be registered: name: must be"),
        (lambda: prompt(name="")(lambda: ""), "name: must be"),
        (lambda: prompt(name="a:b")(lambda: ""), "name: must be"),
        (lambda: prompt(wants(dict)), "argument: its arguments come as text"),
        (lambda: prompt(wants(Point)), "argument: its arguments come as text"),
        (lambda: prompt(wants(list[int] | None)), "argument: its arguments come as text"),
        (lambda: prompt(wants(object())), "prompt 'ask' cannot be registered"),
        (lambda: prompt(complete={"argument": "abc"})(wants(str)), "from a list of strings"),
        (lambda: prompt(complete={"argument": [1]})(wants(str)), "from a list of strings"),  # type: ignore[list-item]
        (lambda: prompt(complete={"argument": lambda typed: []})(wants(str)), "function of two"),  # type: ignore
    ],
)
def test_what_cannot_be_offered_is_refused_when_it_is_defined(make: Any, said: str) -> None:
    with pytest.raises(InvalidOffer) as refused:
        make()
    assert said in str(refused.value)


def test_no_tool_can_have_the_name_that_a_call_for_an_offer_has() -> None:
    long = "x:" + "y" * 500

    @prompt(name="a" * 128)
    def ask(b: str) -> str:
        return b

    names = [
        made(resource("x:y")(lambda: "")).tool.definition.name,
        made(resource(long)(lambda: "")).tool.definition.name,
        made(ask).tool.definition.name,
        made(ask).completers["b"].definition.name,
    ]
    assert names[0] == "resources/read x:y"
    assert [name for name in names if is_tool_name(name) or len(name) > 128] == []


async def test_a_text_is_a_resource_and_its_uri_has_no_variables() -> None:
    async with open_server([text_resource("note://one", "Hello", description="A note.")]) as server:
        client = await server.client()
        (found,) = (await client.request("resources/read", {"uri": "note://one"}))["result"]["contents"]
    assert (found["text"], found["mimeType"]) == ("Hello", "text/plain")
    for uri in ("note://{id}", "note://{"):
        with pytest.raises(InvalidOffer):
            text_resource(uri, "Hello")
