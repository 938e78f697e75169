"""Tools that run as tasks, wait for a file to appear, and write down each of their runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from msgspec import Struct

from dragoman import ToolContext, tool
from dragoman.errors import InvalidArgument, ProtocolError


class Sure(Struct):
    sure: bool


async def _wait_for(gate: str, ctx: ToolContext) -> None:
    while not os.path.exists(gate):  # noqa: ASYNC240
        ctx.cancellation.raise_if_set()
        await asyncio.sleep(0.01)


def _note(gate: str, said: str) -> None:
    with Path(f"{gate}.runs").open("a") as runs:
        runs.write(f"{said}\n")


@tool(task="optional")
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool(task="optional", idempotent=True)
async def build(gate: str, ctx: ToolContext) -> str:
    """May be run again: ends when the file is there."""
    _note(gate, "build")
    ctx.progress(1, 2, "half of it")
    await _wait_for(gate, ctx)
    return "built"


@tool(task="optional")
async def pay(gate: str, ctx: ToolContext) -> str:
    """Must not be run twice: ends when the file is there."""
    _note(gate, "pay")
    await _wait_for(gate, ctx)
    return "paid"


@tool(task="optional", idempotent=True)
async def confirm(gate: str, ctx: ToolContext) -> str:
    """Asks, and ends when the file is there."""
    first = await ctx.elicit("Are you sure?", Sure)
    _note(gate, f"first {first is not None and first.sure}")
    second = await ctx.elicit("Really?", Sure)
    _note(gate, f"second {second is not None and second.sure}")
    await _wait_for(gate, ctx)
    return "confirmed"


@tool(task="required")
async def insist() -> int:
    """Takes nothing but a task; says which process runs it."""
    return os.getpid()


@tool(task="optional")
async def refuse() -> str:
    """Fails, and says why."""
    raise InvalidArgument("There is no such page")


@tool(task="optional")
async def fault() -> str:
    """Ends with a JSON-RPC error."""
    raise ProtocolError("The printer is on fire", code=451)
