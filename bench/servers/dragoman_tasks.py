"""Tools for `dragoman serve` that may become tasks."""

import asyncio

from dragoman import tool


@tool(task="optional")
async def noop() -> None:
    """Does nothing."""


@tool(task="optional", timeout_ms=3_600_000)
async def wait() -> None:
    """Does not return for an hour."""
    await asyncio.sleep(3_600)
