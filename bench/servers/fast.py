"""FastMCP with the same tools."""

import asyncio

from fastmcp import FastMCP

server = FastMCP("fast")


@server.tool
async def noop() -> None:
    """Does nothing."""


@server.tool
async def once() -> None:
    """Awaits once."""
    await asyncio.sleep(0)


@server.tool
def sync() -> None:
    """Does nothing, on a thread."""


@server.tool
async def take(text: list[str]) -> None:
    """Does nothing with what it is given."""


server.run(transport="stdio", show_banner=False)
