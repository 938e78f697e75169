"""The same tools for `dragoman serve`."""

import asyncio
import json

from dragoman import tool

_DOCUMENT = [{"id": number, "text": "some words", "values": [1.5, 2.5, 3.5]} for number in range(100)]


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


@tool
async def work() -> None:
    """Words a document, which takes a fraction of a millisecond."""
    json.dumps(_DOCUMENT)
