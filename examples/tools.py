"""Tools to try Dragoman with: `dragoman serve examples/tools.py`."""

import asyncio
import random
import struct
import time
import zlib
from collections import Counter
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from dragoman import Image, ToolContext, tool
from dragoman.errors import InvalidArgument


@tool(title="Add two numbers", read_only=True, idempotent=True)
async def add(a: float, b: float) -> float:
    """Adds two numbers."""
    return a + b


@dataclass
class Roll:
    dice: list[int]
    total: int


@tool(title="Roll dice")
async def roll_dice(
    count: Annotated[int, Meta(ge=1, le=100, description="how many dice")] = 2,
    sides: Annotated[int, Meta(ge=2, le=1000, description="sides of each")] = 6,
) -> Roll:
    """Rolls dice, and adds them up."""
    dice = [random.randint(1, sides) for _ in range(count)]
    return Roll(dice, sum(dice))


@tool(title="Divide", read_only=True, idempotent=True)
async def divide(dividend: float, divisor: float) -> float:
    """Divides one number by another; tells the client what is wrong when that cannot be done."""
    if divisor == 0:
        raise InvalidArgument("Nothing can be divided by zero", {"field": "divisor"})
    return dividend / divisor


@tool(title="Count words", read_only=True, idempotent=True)
def count_words(text: str, most: Annotated[int, Meta(ge=1, le=1000)] = 10) -> dict[str, int]:
    """Counts the words of a text. A plain function: it runs on a thread, so it may take its time."""
    return dict(Counter(text.lower().split()).most_common(most))


@tool(title="Count down", timeout_ms=2_000)
async def count_down(start: Annotated[int, Meta(ge=1, le=60)], ctx: ToolContext) -> str:
    """Counts down by the tenth of a second, reports its progress, and stops when nobody waits any longer."""
    for left in range(start, 0, -1):
        ctx.cancellation.raise_if_set()
        ctx.progress(start - left, start, f"{left} to go")
        await asyncio.sleep(0.1)
    return "lift-off"


@tool(title="Sleep", timeout_ms=500)
def oversleep(seconds: Annotated[float, Meta(ge=0, le=30)]) -> str:
    """Sleeps, deaf to everything. Its caller is answered after half a second all the same."""
    time.sleep(seconds)
    return "awake"


@tool(title="Paint a colour", read_only=True, idempotent=True)
async def paint(
    red: Annotated[int, Meta(ge=0, le=255)],
    green: Annotated[int, Meta(ge=0, le=255)],
    blue: Annotated[int, Meta(ge=0, le=255)],
) -> Image:
    """Returns a small picture of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = 32
    rows = (b"\0" + bytes((red, green, blue)) * size) * size
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return Image(png)
