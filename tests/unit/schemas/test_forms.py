"""Types become forms that every client can show, and what was filled in becomes what the type promises."""

from __future__ import annotations

import dataclasses
import datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from mcp.server.elicitation import _validate_rendered_properties
from msgspec import Meta

from dragoman import choices
from dragoman.errors import InvalidArgument
from dragoman.schemas.forms import make_form


class Size(Enum):
    """How large."""

    SMALL = "S"
    MEDIUM = "M"
    LARGE = "L"


class Level(IntEnum):
    LOW = 1


class Order(msgspec.Struct):
    size: Size
    wrapping: Literal["none", "gift"] = "none"
    count: Annotated[int, Meta(ge=1, le=5, description="How many")] = 1
    note: str | None = None


class Typed(TypedDict):
    name: str


class Pair(NamedTuple):
    name: str


@dataclasses.dataclass
class Person:
    name: str
    born: datetime.date | None


class Model(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(min_length=2, pattern="^[A-Z]")]
    kind: Literal["a", "b"] | None = None
    only: Literal["one"] = "one"


class Nested(msgspec.Struct):
    order: Order


class Empty(msgspec.Struct):
    pass


def only(field: dict[str, Any], name: str = "value") -> dict[str, Any]:
    return {"type": "object", "properties": {name: field}, "required": [name]}


TITLED = [{"const": "S", "title": "Small"}, {"const": "XL", "title": "Very large"}]


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (Annotated[datetime.datetime, Meta(tz=True)], {"type": "string", "format": "date-time"}),
        (Decimal, {"type": "string"}),
        (Literal["b", "a"], {"type": "string", "enum": ["b", "a"]}),
        (Size, {"type": "string", "enum": ["S", "M", "L"], "title": "Size", "description": "How large."}),
        (list[Literal["b", "a"]], {"type": "array", "items": {"type": "string", "enum": ["b", "a"]}}),
        (set[Literal["b", "a"]], {"type": "array", "items": {"type": "string", "enum": ["b", "a"]}}),
        (Annotated[str, choices(S="Small", XL="Very large")], {"type": "string", "oneOf": TITLED}),
        (
            Annotated[list[Annotated[str, choices({"S": "Small"}, XL="Very large")]], Meta(min_length=1)],
            {"type": "array", "items": {"anyOf": TITLED}, "minItems": 1},
        ),
        (
            Annotated[str, Meta(extra_json_schema={"enum": ["a"], "enumNames": ["A"]})],
            {"type": "string", "enum": ["a"], "enumNames": ["A"]},
        ),
        (
            Annotated[int, Meta(ge=0, le=9), "A digit"],
            {"type": "integer", "minimum": 0, "maximum": 9, "description": "A digit"},
        ),
        (
            Annotated[str, Meta(min_length=1, max_length=3, pattern="^a")],
            {"type": "string", "minLength": 1, "maxLength": 3},
        ),
        (Annotated[str, Meta(extra_json_schema={"format": "email"})], {"type": "string", "format": "email"}),
    ],
    ids=str,
)
def test_a_bare_type_is_a_form_with_one_field(kind: Any, field: dict[str, Any]) -> None:
    form = make_form(kind, "value")
    assert form.schema == only(field)
    _validate_rendered_properties(dict(form.schema))  # What the official SDK takes for a form.


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (
            Order,
            {
                "type": "object",
                "properties": {
                    "size": {"type": "string", "enum": ["S", "M", "L"], "title": "Size", "description": "How large."},
                    "wrapping": {"type": "string", "enum": ["none", "gift"], "default": "none"},
                    "count": {"type": "integer", "minimum": 1, "maximum": 5, "description": "How many", "default": 1},
                    "note": {"type": "string"},
                },
                "required": ["size"],
            },
        ),
        (Typed, only({"type": "string"}, "name")),
        (
            Person,
            {
                "type": "object",
                "properties": {"name": {"type": "string"}, "born": {"type": "string", "format": "date"}},
                "required": ["name"],
            },
        ),
        (
            Model,
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 2, "title": "Name"},
                    "kind": {"type": "string", "enum": ["a", "b"], "title": "Kind"},
                    "only": {"type": "string", "enum": ["one"], "default": "one", "title": "Only"},
                },
                "required": ["name"],
            },
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_type_with_fields_is_a_form_with_those(kind: Any, schema: dict[str, Any]) -> None:
    form = make_form(kind, "value")
    assert form.schema == schema
    _validate_rendered_properties(dict(form.schema))


@pytest.mark.parametrize(
    "kind",
    [
        dict,
        dict[str, int],
        list,
        list[str],
        list[int],
        list[Order],
        tuple[int, str],
        bytes,
        object,
        Any,
        None,
        int | str,
        Literal[1, 2],
        list[Literal[1]],
        Level,
        Nested,
        Empty,
        Pair,
        complex,
    ],
    ids=str,
)
def test_what_no_form_can_carry_is_refused(kind: Any) -> None:
    with pytest.raises(TypeError):
        make_form(kind, "value")


@pytest.mark.parametrize(
    ("kind", "content", "value"),
    [
        (bool, {"value": True}, True),
        (float, {"value": 1}, 1.0),
        (int, {"value": 2.0}, 2),
        (Decimal, {"value": "1.10"}, Decimal("1.10")),
        (datetime.date, {"value": "2026-07-28"}, datetime.date(2026, 7, 28)),
        (Size, {"value": "M", "more": 5}, Size.MEDIUM),
        (set[Literal["a", "b"]], {"value": ["a"]}, {"a"}),
        (Order, {"size": "L", "note": "x"}, Order(Size.LARGE, note="x")),
        (Order, {"size": "L", "unknown": {}}, Order(Size.LARGE)),
        (Person, {"name": "Ada"}, Person("Ada", None)),
        (Annotated[Person, "Who"], {"name": "Ada"}, Person("Ada", None)),
        (Literal["a", None], {}, None),
        (Literal["a", None], {"value": "a"}, "a"),
        (Model, {"name": "Ada"}, Model(name="Ada")),
        (Annotated[str, choices(S="Small")], {"value": "S"}, "S"),
    ],
)
def test_what_was_filled_in_is_what_the_type_promises(kind: Any, content: Any, value: Any) -> None:
    assert make_form(kind, "value").read(content) == value


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (bool, None),
        (bool, []),
        (bool, {}),
        (bool, {"value": "yes"}),
        (int, {"value": 1.5}),
        (Annotated[int, Meta(ge=1)], {"value": 0}),
        (Annotated[str, Meta(pattern="^a$")], {"value": "b"}),
        (datetime.date, {"value": "yesterday"}),
        (Size, {"value": "XS"}),
        (Annotated[str, choices(S="Small")], {"value": "Small"}),
        (list[Literal["a"]], {"value": ["a", "b"]}),
        (Order, {"size": None}),
        (Order, {"size": "S", "note": 5}),
        (Model, {"name": "ada"}),
    ],
)
def test_what_does_not_fit_the_form_is_refused_even_where_the_form_could_not_say_so(kind: Any, content: Any) -> None:
    with pytest.raises(InvalidArgument, match="does not fit its form"):
        make_form(kind, "value").read(content)
