"""The same tools, one of which keeps a quarter of a megabyte of each call."""

from __future__ import annotations

from typing import Any

from tools import count, crash, doze, overrun, refuse, repeat, report, wait

from dragoman import tool

__all__ = ["count", "crash", "doze", "echo", "overrun", "refuse", "repeat", "report", "wait"]

_kept: list[bytes] = []


@tool(read_only=True)
async def echo(text: str) -> Any:
    """Returns the text."""
    _kept.append(b"x" * (1 << 18))
    return text
