"""Types that go both ways: JSON becomes a value of the type for the function, and its result becomes the same JSON."""

from __future__ import annotations

import enum
import typing
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict

import msgspec
import pydantic
import pydantic.dataclasses
import pytest

from dragoman import tool
from dragoman.testing import open_server


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Word(enum.StrEnum):
    YES = "yes"


@dataclass
class Point:
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)


@dataclass
class Circle:
    radius: Decimal


class Address(TypedDict):
    street: str
    since: date


class Pair(NamedTuple):
    name: str
    count: int


class Box(msgspec.Struct, frozen=True):
    when: datetime
    sizes: tuple[Size, ...] = ()


class Item(pydantic.BaseModel):
    price: Decimal
    bought: datetime
    path: Path = Path("a")


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    tricks: list[str]


class Named(pydantic.BaseModel):
    name: str = pydantic.Field(alias="theName")


@pydantic.dataclasses.dataclass
class Strict:
    count: Annotated[int, pydantic.Field(ge=1)]


UserId = NewType("UserId", int)
MOMENT = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
BOUGHT = Item(price=Decimal("1.50"), bought=MOMENT)
BOUGHT_JSON = {"price": "1.50", "bought": "2024-01-15T10:30:00Z", "path": "a"}


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        (str, "text", "text"),
        (int, 2**53, 2**53),
        (float, 1.5, 1.5),
        (bool, True, True),
        (type(None), None, None),
        (bytes, b"\x00\xff", "AP8="),
        (Path, Path("/tmp/a b"), "/tmp/a b"),
        (PurePosixPath, PurePosixPath("a/b"), "a/b"),
        (datetime, MOMENT, "2024-01-15T10:30:00Z"),
        (date, MOMENT.date(), "2024-01-15"),
        (time, time(10, 30), "10:30:00"),
        (timedelta, timedelta(hours=1, seconds=2), "PT3602S"),
        (Decimal, Decimal("1.10"), "1.10"),
        (uuid.UUID, ID, str(ID)),
        (Color, Color.RED, "red"),
        (Size, Size.LARGE, 2),
        (Word, Word.YES, "yes"),
        (Literal["a", 2], "a", "a"),
        (UserId, UserId(7), 7),
        (Annotated[Path, "where"], Path("x"), "x"),
        (Point, Point(1, 2, ["a"]), {"x": 1, "y": 2, "tags": ["a"]}),
        (Address, {"street": "a", "since": MOMENT.date()}, {"street": "a", "since": "2024-01-15"}),
        (Pair, Pair("a", 2), ["a", 2]),
        (Box, Box(MOMENT, (Size.SMALL,)), {"when": "2024-01-15T10:30:00Z", "sizes": [1]}),
        (Item, BOUGHT, BOUGHT_JSON),
        (Named, Named(theName="x"), {"theName": "x"}),
        (Strict, Strict(2), {"count": 2}),
        (pydantic.HttpUrl, pydantic.HttpUrl("http://a.test/"), "http://a.test/"),
        (set[int], {7}, [7]),
        (frozenset[Color], frozenset({Color.RED}), ["red"]),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (tuple[Path, ...], (Path("a"), Path("b")), ["a", "b"]),
        (list[Item], [BOUGHT], [BOUGHT_JSON]),
        (dict[str, Item], {"a": BOUGHT}, {"a": BOUGHT_JSON}),
        (dict[str, Path], {"a": Path("b")}, {"a": "b"}),
        (list[dict[str, Decimal]], [{"a": Decimal(1)}], [{"a": "1"}]),
        (Item | None, BOUGHT, BOUGHT_JSON),
        (Item | None, None, None),
        (Path | None, Path("a"), "a"),
        (Path | int, Path("a"), "a"),
        (Path | int, 3, 3),
        (date | datetime, MOMENT.date(), "2024-01-15"),
        (date | datetime, MOMENT, "2024-01-15T10:30:00Z"),
        (uuid.UUID | str, ID, str(ID)),
        (uuid.UUID | str, "x", "x"),
        (dict[int, Size], {7: Size.LARGE}, {"7": 2}),
        (dict[uuid.UUID, str] | Path, {ID: "a"}, {str(ID): "a"}),
        (Decimal | Color | None, Decimal(2), "2"),
        (Decimal | Color | None, Color.BLUE, "blue"),
        (Decimal | Color | None, None, None),
        (Point | Circle, Circle(Decimal(2)), {"radius": "2"}),
        (Cat | Dog, Dog(tricks=["sit"]), {"kind": "dog", "tricks": ["sit"]}),
        (Cat | Dog, Cat(lives=9), {"kind": "cat", "lives": 9}),
        (list[Cat | Path], [Cat(lives=1), Path("a")], [{"kind": "cat", "lives": 1}, "a"]),
        (Annotated[Cat | Dog, pydantic.Field(discriminator="kind")], Cat(lives=9), {"kind": "cat", "lives": 9}),
    ],
)
async def test_a_value_arrives_as_its_type_and_is_returned_as_the_same_json(
    kind: Any, value: Any, written: Any
) -> None:
    seen: list[Any] = []

    def same(value: Any) -> Any:
        seen.append(value)
        return value

    same.__annotations__ |= {"value": kind, "return": kind}
    async with open_server([tool(same)]) as server:
        client = await server.client()
        result = await client.call_tool("same", {"value": written})
        assert not result["isError"], result
        (listed,) = [each for each in await client.list_tools() if each["name"] == "same"]
    assert seen == [value]
    assert type(seen[0]) is type(value)
    is_object = "result" not in listed["outputSchema"].get("properties", {})
    assert result["structuredContent"] == (written if is_object else {"result": written})
    names_text = isinstance(value, str) or str in typing.get_args(kind)
    text = result["content"][0]["text"]
    assert text == (written if names_text and isinstance(written, str) else msgspec.json.encode(written).decode())


@pytest.mark.parametrize(
    ("kind", "written", "message"),
    [
        (Path | int, True, 'the value is not of type "string" or "integer"'),
        (date | datetime, "soon", "fits none of the types that it may have"),
        (Strict, {"count": 0}, "less than the minimum"),
        (Annotated[str, pydantic.AfterValidator(lambda text: int(text))], "x", "Value error"),
        (Annotated[Decimal, pydantic.Field(max_digits=2)], "1.25", "no more than 2 digits"),
        (pydantic.HttpUrl, "nowhere", "should be a valid URL"),
        (uuid.UUID, "x", "Invalid UUID"),
        (dict[int, str], {"x": "a"}, "Expected `int`, got `str` for a key"),
        (Sequence[Annotated[int, pydantic.Field(ge=1)]], [0], "less than the minimum"),
        (NewType("Count", Annotated[int, pydantic.Field(ge=1)]), 0, "less than the minimum"),
        (timedelta, "x", "Invalid ISO8601 duration"),
    ],
)
async def test_a_value_that_does_not_fit_is_refused_with_its_place(kind: Any, written: Any, message: str) -> None:
    def take(value: Any) -> None: ...

    take.__annotations__["value"] = kind
    async with open_server([tool(take)]) as server:
        result = await (await server.client()).call_tool("take", {"value": written})
    error = msgspec.json.decode(result["content"][0]["text"])
    assert error["code"] == "INVALID_ARGUMENT"
    (found,) = error["details"]["errors"]
    assert found["path"].startswith("/value")
    assert message in found["message"]


async def test_what_pydantics_annotations_change_is_what_the_function_gets() -> None:
    seen: list[Any] = []

    @tool
    def take(
        word: Annotated[str, pydantic.StringConstraints(strip_whitespace=True, to_upper=True)],
        number: Annotated[int, pydantic.AfterValidator(lambda number: number + 1)],
    ) -> None:
        seen.extend([word, number])

    async with open_server([take]) as server:
        await (await server.client()).call_tool("take", {"word": " a ", "number": 1})
    assert seen == ["A", 2]


class Text(str):
    __slots__ = ()


class Number(float): ...


class Whole(int): ...


async def test_subclasses_of_plain_types_are_returned_as_plain_values() -> None:
    @tool
    def some() -> dict[str, Any]:
        return {"text": Text("a"), "number": Number(1.5), "whole": Whole(7), "path": Path("b")}

    @tool
    def text() -> str:
        return Text("plain")

    async with open_server([some, text]) as server:
        client = await server.client()
        result = await client.call_tool("some", {})
        assert result["structuredContent"] == {"text": "a", "number": 1.5, "whole": 7, "path": "b"}
        assert (await client.call_tool("text", {}))["content"] == [{"type": "text", "text": "plain"}]
