"""A tool that takes its time, and one that ends it."""

from __future__ import annotations

import asyncio

from dragoman import ToolContext, tool

_woken = asyncio.Event()


@tool
async def nap(ctx: ToolContext) -> dict[str, bool]:
    """Returns when it is woken."""
    ctx.logger.info("napping")
    await _woken.wait()
    return {"woken": True}


@tool
async def wake() -> dict[str, bool]:
    """Lets the other tool return."""
    _woken.set()
    return {"done": True}
