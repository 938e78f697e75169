"""Tools with a result of each kind."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pydantic

from dragoman import Image, tool


@dataclass
class Point:
    x: int
    y: int


class Item(pydantic.BaseModel):
    name: str
    bought: datetime


MOMENT = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)


@tool(read_only=True, cache_ttl_ms=0)
def text() -> str:
    return 'He said "no"'


@tool
async def nothing() -> None: ...


@tool
def number() -> float:
    return 1.5


@tool
def choice() -> Literal["a", "b"] | None:
    return None


@tool
def items() -> list[Item]:
    return [Item(name="a", bought=MOMENT)]


@tool
def point() -> Point:
    return Point(1, 2)


@tool
def places() -> dict[str, Path | datetime]:
    return {"file": Path("a"), "when": MOMENT}


@tool
def picture() -> str | Image:
    return Image(b"a")


@tool
def untrue() -> int:
    return "seven"  # type: ignore[return-value]


TOOLS = [text, nothing, number, choice, items, point, places, picture, untrue]
