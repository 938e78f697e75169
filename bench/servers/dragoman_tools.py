"""The same tools for `dragoman serve`."""

import asyncio

from dragoman import tool


@tool
async def noop() -> None:
    """Does nothing."""


@tool
async def once() -> None:
    """Awaits once."""
    await asyncio.sleep(0)


@tool
def sync() -> None:
    """Does nothing, on a thread."""


@tool
async def take(text: list[str]) -> None:
    """Does nothing with what it is given."""
