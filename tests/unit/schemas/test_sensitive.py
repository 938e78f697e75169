"""Sensitive arguments, and texts without them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct
from pydantic import BaseModel, Field, SecretStr

from dragoman import tool
from dragoman.errors import Conflict
from dragoman.schemas.schema import compile_schema
from dragoman.schemas.sensitive import hide_within, hiding, if_marked, may_be_marked, open_marked, redact
from dragoman.testing import open_server

SECRET = "hunter2-is-not-for-you"
MARKED = {"type": "string", "x-sensitive": True}
Sensitive = Annotated[str, Meta(extra_json_schema={"x-sensitive": True})]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": MARKED}},
        {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": MARKED}},
        {"properties": {"a": {"anyOf": [{"type": "null"}, MARKED]}}},
        {"allOf": [{"properties": {"a": MARKED}}]},
        {"additionalProperties": MARKED},
        {"x-sensitive": True},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}], "properties": {"a": MARKED}},
    ],
    ids=str,
)
def test_a_marked_value_is_found_wherever_a_schema_marks_it(schema: dict[str, Any]) -> None:
    hide = hiding(schema, {"a": SECRET})
    assert hide is not None
    assert hide(f"cannot use {SECRET!r}, {SECRET}") == "cannot use '[REDACTED]', [REDACTED]"
    assert may_be_marked(schema)


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"items": MARKED}, [SECRET], SECRET),
        ({"prefixItems": [{}, MARKED]}, ["plain", SECRET], SECRET),
        ({"x-sensitive": True}, {"deep": [{"er": SECRET}]}, SECRET),
        ({"x-sensitive": True}, 123456, "123456"),
        (MARKED, 'a"b\nc', r"a\"b\nc"),
        (MARKED, "a'b\nc", r"a'b\nc"),
    ],
)
def test_texts_numbers_and_their_quotations_are_hidden(schema: dict[str, Any], value: Any, text: str) -> None:
    hide = hiding({"properties": {"a": schema}}, {"a": value})
    assert hide is not None
    assert hide(f"<{text}>") == "<[REDACTED]>"


@pytest.mark.parametrize("value", ["abc", "", None, True, 12, []])
def test_a_value_that_is_too_short_hides_nothing(value: Any) -> None:
    assert hiding({"properties": {"a": MARKED}}, {"a": value}) is None


def test_a_text_is_hidden_whole_where_too_many_values_would_have_to_be() -> None:
    hide = hiding({"properties": {"a": MARKED}}, {"a": [f"secret-{each}" for each in range(2000)]})
    assert hide is not None
    assert hide("secret-1999 and more") == "[REDACTED]"


def test_a_value_is_hidden_within_others() -> None:
    hide = hiding({"properties": {"a": MARKED}}, {"a": "12345"})
    assert hide is not None
    hidden = hide_within(hide, {"x": ["is 12345", 12345, 7, None, True], "12345": ("12345",)})
    assert hidden == {"x": ["is [REDACTED]", "[REDACTED]", 7, None, True], "[REDACTED]": ["[REDACTED]"]}


class Login(Struct):
    name: str
    password: Sensitive


@tool
def enter(login: Login) -> None:
    """Quotes what it must not, where only the log sees it."""
    raise RuntimeError(f"no entry for {login.name} with {login.password}")


@tool
def tell(password: Sensitive) -> None:
    """Quotes what it must not in an answer."""
    raise Conflict(f"{password} is taken", {"password was": [password], "other": 1})


@pytest.mark.parametrize("dialect", ["structured", "envelope", "plain"])
async def test_what_is_logged_and_answered_about_an_exception_has_no_sensitive_argument(dialect: str) -> None:
    async with open_server([enter, tell], {"response": {"dialect": dialect}}) as server:
        client = await server.client()
        answers = [
            await client.call_tool("enter", {"login": {"name": "ada", "password": SECRET}}),
            await client.call_tool("tell", {"password": SECRET}),
        ]
        assert all(each["isError"] for each in answers)
        assert SECRET not in str(answers)
        assert "[REDACTED] is taken" in str(answers[1])
        log = server.stderr.decode()
        assert SECRET not in log
        assert "no entry for ada with [REDACTED]" in log


class Word(BaseModel):
    word: SecretStr = Field(json_schema_extra={"x-sensitive": True})


async def test_a_sensitive_field_of_a_model_is_neither_logged_nor_answered() -> None:
    @tool
    def log_in(login: Word, place: Path) -> None:
        said = f"cannot use {login.word.get_secret_value()} in {place}"
        raise Conflict(said) if place.name == "told" else ValueError(said)

    async with open_server([log_in]) as server:
        client = await server.client()
        for place in ("told", "not told"):
            result = await client.call_tool("log_in", {"login": {"word": SECRET}, "place": place})
            assert result["isError"]
            assert SECRET not in str(result)
        assert SECRET not in server.stderr.decode()
        assert "cannot use [REDACTED] in not told" in server.stderr.decode()


def test_nothing_is_shown_of_arguments_that_are_nested_too_deeply_to_look_through() -> None:
    deep: Any = SECRET
    for _ in range(5_000):
        deep = {"a": deep}
    schema = {"properties": {"a": {"$ref": "#"}, "b": MARKED}}
    for marked in (schema, {"properties": {"a": MARKED}}):
        hide = hiding(marked, deep)
        assert hide is not None
        assert hide(f"failed with {SECRET}") == "[REDACTED]"


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"patternProperties": {"^p": MARKED}}, {"pass": SECRET}),
        ({"unevaluatedProperties": MARKED}, {"x": SECRET}),
        ({"dependentSchemas": {"x": {"properties": {"a": MARKED}}}}, {"a": SECRET, "x": 1}),
        ({"properties": {"a": {"items": [{}, MARKED]}}}, {"a": [1, SECRET]}),
        ({"properties": {"a": {"items": [{}], "additionalItems": MARKED}}}, {"a": [1, SECRET]}),
        ({"properties": {"a": {"contains": MARKED}}}, {"a": [SECRET]}),
    ],
    ids=["pattern", "unevaluated", "dependent", "item of a list", "additional item", "contained"],
)
def test_mark_is_found_wherever_a_schema_can_have_it(schema: Any, arguments: Any) -> None:
    hide = hiding(schema, arguments)
    assert hide is not None
    assert SECRET not in hide(f"failed with {SECRET}")


def test_secret_is_hidden_as_ascii_quotes_it_too() -> None:
    hide = hiding({"properties": {"a": MARKED}}, {"a": "päßword"})
    assert hide is not None
    assert hide(ascii("päßword")) == "'[REDACTED]'"


# Results


CIRCLE = {"type": "object", "properties": {"pin": MARKED, "next": {"$ref": "#"}}}
PAIR = {"type": "object", "properties": {"pin": MARKED, "name": {"type": "string"}}}


class Opaque:
    """An object that JSON has no type for."""

    def __str__(self) -> str:
        return f"pin={SECRET}"


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"properties": {"a": MARKED}}, {"a": SECRET, "b": 1}, {"a": "***", "b": 1}),
        ({"properties": {"a": PAIR}}, {"a": {"pin": 1, "name": "x"}}, {"a": {"pin": "***", "name": "x"}}),
        ({"properties": {"a": {"items": PAIR}}}, {"a": [{"pin": 1}, {}]}, {"a": [{"pin": "***"}, {}]}),
        ({"items": {"$ref": "#/$defs/P"}, "$defs": {"P": PAIR}}, [{"pin": 1}], [{"pin": "***"}]),
        ({"properties": {"a": {"$ref": "#/$defs/A", **MARKED}}, "$defs": {"A": {}}}, {"a": 1}, {"a": "***"}),
        (CIRCLE, {"pin": 1, "next": {"pin": 2, "next": {}}}, {"pin": "***", "next": {"pin": "***", "next": {}}}),
        ({"anyOf": [{"type": "null"}, PAIR]}, {"pin": 1, "name": "x"}, {"pin": "***", "name": "x"}),
        ({"allOf": [{"properties": {"name": {}}}, PAIR]}, {"pin": 1, "name": "x"}, {"pin": "***", "name": "x"}),
        ({"if": {}, "then": PAIR}, {"pin": 1, "name": "x"}, {"pin": "***", "name": "x"}),
        ({"prefixItems": [{}, MARKED], "items": {}}, ["a", "b", "c"], ["a", "***", "c"]),
        ({"items": [MARKED], "additionalItems": {}}, ["a", "b"], ["***", "b"]),
        ({"items": [{}], "additionalItems": MARKED}, ["a", "b"], ["a", "***"]),
        ({"properties": {"a": {}}, "additionalProperties": MARKED}, {"a": 1, "b": 1}, {"a": 1, "b": "***"}),
        ({"patternProperties": {"^s_": MARKED, "[": {}}}, {"s_a": 1, "a": 2}, {"s_a": "***", "a": 2}),
        ({"properties": {"1": MARKED}}, {1: SECRET, 2: "x"}, {1: "***", 2: "x"}),
        ({"properties": {"a": MARKED}}, {"a": None}, {"a": None}),
        ({"properties": {"a": MARKED}}, {"a": False}, {"a": "***"}),
        ({"x-sensitive": True}, {"a": 1}, "***"),
        ({"properties": {"a": {"$ref": "#anchor"}}}, {"a": SECRET, "b": 1}, {"a": "***", "b": 1}),
        ({"properties": {"a": PAIR}}, {"a": Opaque()}, {"a": "***"}),
        ({"properties": {"a": {"$ref": "#/$defs/P"}}, "$defs": {"P": PAIR}}, {"a": Opaque()}, {"a": "***"}),
        ({"items": {"properties": {"a": MARKED}}}, ({"a": SECRET},), [{"a": "***"}]),
    ],
)
def test_marked_values_of_a_result_are_replaced_and_the_others_kept(
    schema: dict[str, Any], value: Any, expected: Any
) -> None:
    given = str(value)
    assert redact(schema, value, "***") == expected
    assert str(value) == given


def test_an_object_without_a_marked_part_is_kept() -> None:
    opaque = Opaque()
    assert redact({"properties": {"a": MARKED, "b": {"type": "string"}}}, {"b": opaque, "c": opaque}) == {
        "b": opaque,
        "c": opaque,
    }
    assert redact(None, {"a": SECRET}) == {"a": SECRET}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer", "x-sensitive": True}}}, {"a": 5}),
        ({"properties": {"a": {"const": SECRET, "x-sensitive": True}}, "required": ["a"]}, {"a": SECRET}),
        (
            {"properties": {"a": {"$ref": "#/$defs/A", "type": "integer"}}, "$defs": {"A": {"x-sensitive": True}}},
            {"a": 5},
        ),
        ({"properties": {"a": {"allOf": [{"type": "integer"}, MARKED]}}}, {"a": 5}),
        ({"items": {"anyOf": [{"type": "integer", "x-sensitive": True}, {"type": "null"}]}}, [5, None]),
        ({"additionalProperties": {"type": "object", "x-sensitive": True}}, {"a": {}}),
        ({"properties": {"if": {"type": "integer", "x-sensitive": True}, "b": {"type": "integer"}}}, {"if": 5, "b": 5}),
    ],
)
def test_a_redacted_result_fits_the_schema_that_is_shown(schema: dict[str, Any], value: Any) -> None:
    shown = redact(schema, value)
    assert shown != value
    opened = {**open_marked(schema)}
    compile_schema({"$schema": "https://json-schema.org/draft/2020-12/schema", **opened}).check(shown)
    assert redact(opened, value) == shown


def test_a_schema_that_marks_nothing_is_not_copied() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert open_marked(schema) is schema
    assert (if_marked(schema), if_marked(None), if_marked(5)) == (None, None, None)
    field = {"title": "Pin", "description": "d", "type": "integer", "minimum": 1, "x-sensitive": True}
    opened = open_marked({**schema, "properties": {"a": schema, "b": field}})
    assert opened["properties"] == {"a": schema, "b": {"title": "Pin", "description": "d", "x-sensitive": True}}
