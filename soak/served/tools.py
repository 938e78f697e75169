"""The tools that the servers under load have: quick, slow, large, failing, late, and one that waits to be cancelled."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from dragoman import ToolContext, tool
from dragoman.errors import Conflict


@tool(read_only=True)
async def echo(text: str) -> Any:
    """Returns the text. There is no output schema, so the answer has the text once."""
    return text


@tool
async def count(texts: list[str]) -> int:
    """Returns how many characters the texts have together."""
    return sum(map(len, texts))


@tool
async def repeat(text: str, times: int) -> Any:
    """Returns the text so many times."""
    return text * times


@tool
def doze(seconds: float) -> float:
    """Sleeps on a thread."""
    time.sleep(seconds)
    return seconds


@tool
async def refuse() -> None:
    """Fails with an error of its own."""
    raise Conflict("refused, as asked")


@tool
async def crash() -> None:
    """Fails with an exception that nothing foresees."""
    raise RuntimeError("crashed, as asked")


@tool(timeout_ms=50)
async def overrun() -> None:
    """Ends after its deadline."""
    await asyncio.sleep(0.15)


@tool
async def report(steps: int, seconds: float, ctx: ToolContext) -> int:
    """Reports progress, and ignores cancellation."""
    for step in range(1, steps + 1):
        ctx.progress(step, steps)
        await asyncio.sleep(seconds)
    return steps


@tool
async def wait(ctx: ToolContext) -> None:
    """Reports progress once, then waits until it is cancelled."""
    ctx.progress(1, 1)
    await ctx.cancellation.wait()
    ctx.cancellation.raise_if_set()
