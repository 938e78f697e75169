"""Tools for a server of several processes: where they run, how they take their time, and how they change the server."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Annotated, Any

from msgspec import Struct

from dragoman import Ask, ToolContext, resource, tool
from dragoman.runtime import Runtime
from dragoman.testing import MemoryClient

if os.environ.get("REFUSE_TO_LOAD"):
    raise RuntimeError("not today")

_servers: list[Runtime] = []
_construct = Runtime.__init__


def _construct_and_note(self: Runtime, *given: Any, **named: Any) -> None:
    _construct(self, *given, **named)
    _servers.append(self)


Runtime.__init__ = _construct_and_note  # type: ignore[method-assign]  # Tools have no other way to their server.


class Name(Struct):
    name: str


@tool
async def where() -> dict[str, Any]:
    """Says which process runs it."""
    return {"pid": os.getpid(), "isOwner": _servers[0].is_owner}


@tool
async def slow(ms: int, word: str) -> str:
    """Takes its time, and needs nobody."""
    _servers[0].logger.info("under way")
    await asyncio.sleep(ms / 1000)
    return word


@tool
async def steps(count: int, ms: int, ctx: ToolContext) -> int:
    """Says after each step how far it is."""
    for step in range(1, count + 1):
        await asyncio.sleep(ms / 1000)
        ctx.progress(step, count)
    return count


@tool
async def progress_until(path: str, ctx: ToolContext) -> int:
    """Reports progress twice, and returns when the file exists."""
    ctx.progress(1)
    ctx.progress(2)
    while not os.path.exists(path):  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.01)
    return 2


@tool
async def until_cancelled(ctx: ToolContext) -> None:
    """Ends when nobody wants the answer any longer."""
    ctx.logger.info("under way")
    await ctx.cancellation.wait()
    ctx.logger.info("cancelled")
    ctx.cancellation.raise_if_set()


@tool
def greet(who: Annotated[Name, Ask("What is your name?")]) -> str:
    """Asks first."""
    return f"Hello, {who.name}!"


@tool
async def administer(tool: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Calls a tool as whoever owns the standard input of this process."""
    client = await MemoryClient(_servers[0], "stdio").handshake()
    result = await client.call_tool(tool, arguments)
    client.disconnect()
    return list(result["content"])


@tool
async def touch(uri: str) -> None:
    """Says that a resource has changed."""
    _servers[0].resource_updated(uri)


@resource("test://watched")
def watched() -> str:
    """Something to watch."""
    return "watched"


@tool(read_only=True, cache_ttl_ms=60_000, cache_tags=["thing"])
async def look() -> int:
    """Counts how often it really looked."""
    look_count.append(1)
    return len(look_count)


look_count: list[int] = []


@tool(invalidates=["thing"])
async def change() -> None:
    """Makes what was seen untrue."""


@tool
def long_line(length: int, ctx: ToolContext) -> None:
    """Logs much more than a pipe takes at once."""
    for _ in range(5):
        ctx.logger.info("long", {"filler": "x" * length})


@tool
async def stick() -> None:
    """Keeps everything else in this process from going on, for a minute."""
    time.sleep(60)  # noqa: ASYNC251


@tool
def die() -> None:
    """Ends the process, and whatever it was doing."""
    os._exit(9)
