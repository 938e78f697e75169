"""Tools for servers under attack."""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman import ToolContext, tool


@tool(read_only=True)
async def echo(message: str) -> dict[str, str]:
    """Returns the message it was given."""
    return {"message": message}


@tool(read_only=True)
async def take(data: dict[str, Any]) -> int:
    """Counts the members of an object."""
    return len(data)


@tool
async def chatter(times: int, size: int, ctx: ToolContext) -> int:
    """Reports progress, each time with a message of `size` characters."""
    for step in range(times):
        ctx.progress(step, times, "x" * size)
        await asyncio.sleep(0)
    ctx.logger.info("has said everything")
    await ctx.cancellation.wait()
    return times


@tool
async def fail(megabytes: int) -> None:
    """Fails while it holds much data."""
    data = b"x" * (megabytes << 20)
    raise ValueError(len(data))


@tool
def fail_on_a_thread(megabytes: int) -> None:
    """Likewise, as a sync tool."""
    data = b"x" * (megabytes << 20)
    raise ValueError(len(data))
