"""The tools of the servers that are killed. Each run leaves a line outside of the ledger, and returns its token."""

from __future__ import annotations

import asyncio
import os
import secrets

from dragoman import ToolContext, tool

OUTSIDE = "CHAOS_OUTSIDE"
"""The variable with the path of the file that stands for the world outside of the ledger."""
_WORK_SECONDS = 0.01


async def _act(item: str) -> str:
    """Do something that the ledger knows nothing of; the token of this time."""
    token = secrets.token_hex(8)
    await asyncio.sleep(_WORK_SECONDS)
    descriptor = os.open(os.environ[OUTSIDE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{token} {item}\n".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    await asyncio.sleep(_WORK_SECONDS)
    return token


@tool(task="optional")
async def once(item: str) -> str:
    """Acts, and must not be repeated."""
    return await _act(item)


@tool(task="optional", idempotent=True)
async def again(item: str) -> str:
    """Acts, and may be repeated."""
    return await _act(item)


@tool(task="required", idempotent=True)
async def asks(item: str, ctx: ToolContext) -> str:
    """Asks twice before it acts, and may be repeated."""
    for question in ("May it act?", "Is that certain?"):
        await ctx.elicit(question, bool)
    return await _act(item)


@tool(task="required")
async def asks_once(item: str, ctx: ToolContext) -> str:
    """Acts, asks, and must not be repeated."""
    token = await _act(item)
    await ctx.elicit("Was that right?", bool)
    return token
