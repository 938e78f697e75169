"""The same tools, one of which wrongly claims that it may be repeated."""

from __future__ import annotations

import tasks  # type: ignore[import-not-found]
from tasks import again, asks, asks_once

from dragoman import tool

__all__ = ["again", "asks", "asks_once", "once"]


@tool(name="once", task="optional", idempotent=True)
async def once(item: str) -> str:
    """Acts, and is said to be harmless."""
    token: str = await tasks.once(item)
    return token
