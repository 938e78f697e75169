"""Tools for the explorer's page that run as tasks: they wait to be told to go on, ask, fail, and mean no good."""

from __future__ import annotations

import asyncio
from typing import Literal

from msgspec import Struct

from dragoman import ToolContext, tool
from dragoman.errors import InvalidArgument, ProtocolError

HOSTILE = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>"
GATES: dict[str, asyncio.Event] = {}


class Trip(Struct):
    city: str
    nights: int
    by: Literal["train", "ship"] = "train"


@tool(task="optional", idempotent=True)
async def build(name: str, ctx: ToolContext, *, password: str = "") -> list[dict[str, str | int]]:
    """Builds what is named, as soon as `go_on` says so."""
    ctx.progress(3, 10, f"step 3 of {name}")
    gate = asyncio.ensure_future(GATES.setdefault(name, asyncio.Event()).wait())
    stopped = asyncio.ensure_future(ctx.cancellation.wait())
    try:
        await asyncio.wait((gate, stopped), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gate.cancel()
        stopped.cancel()
    ctx.cancellation.raise_if_set()
    return [{"part": HOSTILE, "count": 1}, {"part": name, "count": 2}]


@tool
async def go_on(name: str) -> None:
    """Lets `build` end."""
    GATES.setdefault(name, asyncio.Event()).set()


@tool(task="required")
async def book(ctx: ToolContext) -> str:
    """Asks twice at the same time, and books."""
    trip, is_sure = await asyncio.gather(
        ctx.elicit(f"Where to? {HOSTILE}", Trip), ctx.elicit("Do you really want to go?", bool)
    )
    if trip is None or not is_sure:
        return "nothing was booked"
    return f"{trip.nights} nights in {trip.city}, by {trip.by}"


@tool(task="optional")
async def refuse(how: Literal["tool", "protocol"]) -> str:
    """Fails."""
    if how == "tool":
        raise InvalidArgument(HOSTILE, {"reason": "a whim"})
    raise ProtocolError("it broke", {"part": 7}, code=1234)
