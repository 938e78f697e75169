"""Tools for servers over HTTP: quick ones, slow ones, large ones and one that hangs."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from dragoman import ToolContext, tool
from dragoman.edge.http import exchange


@tool(read_only=True)
async def echo(message: str) -> dict[str, str]:
    """Returns the message it was given."""
    return {"message": message}


@tool
async def nap(seconds: float) -> float:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return seconds


@tool
def doze(seconds: float) -> float:
    """Takes its time, on a thread."""
    time.sleep(seconds)
    return seconds


@tool
async def repeat(text: str, times: int) -> Any:
    """Returns a text of any size, which is sent once: there is no output schema."""
    return text * times


@tool
async def report(steps: int, seconds: float, ctx: ToolContext) -> int:
    """Says how far it is, and takes its time in between."""
    for step in range(1, steps + 1):
        ctx.progress(step, steps)
        await asyncio.sleep(seconds)
    return steps


@tool
async def wait(ctx: ToolContext) -> None:
    """Ends when nobody wants the answer any longer."""
    ctx.logger.info("under way")
    await ctx.cancellation.wait()
    ctx.cancellation.raise_if_set()


@tool
async def who(ctx: ToolContext) -> str:
    """The caller's name."""
    return ctx.caller.name


@tool
def hang(ctx: ToolContext) -> None:
    """Does not listen to anybody for a minute."""
    ctx.logger.info("under way")
    time.sleep(60)


if "NO_PINGS" in os.environ:
    exchange.PING_EVERY = 600.0
