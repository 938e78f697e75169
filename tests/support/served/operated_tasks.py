"""Tools that run as tasks and do as the files in a folder say, for tests of what operators do beside a server."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from dragoman import ToolContext, tool

FOLDER = Path(os.environ["OPERATED_FOLDER"])


@tool(task="optional", idempotent=True)
async def build(name: str, ctx: ToolContext) -> dict[str, int | str]:
    """Builds what is named, once there is a file `open`. The result says which process did."""
    return await _work(f"build {name}", ctx)


@tool(task="optional")
async def pay(name: str, ctx: ToolContext) -> dict[str, int | str]:
    """Does the same, and must not do it twice."""
    return await _work(f"pay {name}", ctx)


@tool(task="required")
async def ask(ctx: ToolContext) -> str:
    """Asks for a name."""
    return str(await ctx.elicit("Whose?", str))


async def _work(what: str, ctx: ToolContext) -> dict[str, int | str]:
    with (FOLDER / "ran").open("a") as ran:
        ran.write(f"{what}\n")
    ctx.progress(1, 4, f"began {what}")
    while not (FOLDER / "open").exists():
        ctx.cancellation.raise_if_set()
        await asyncio.sleep(0.01)
    return {"did": what, "by": os.getpid()}
