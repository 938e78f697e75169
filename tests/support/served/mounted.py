"""Tools in applications of other frameworks, for servers that are given the name of an application."""

from __future__ import annotations

import asyncio
from collections import Counter

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

import dragoman
from dragoman import ToolContext, tool

calls: Counter[str] = Counter()


@tool
def where() -> dict[str, str]:
    """Says where it is."""
    return {"place": "here"}


@tool
async def count_up(to: int, ctx: ToolContext) -> int:
    """Counts, with a notification for each number."""
    for number in range(to):
        ctx.progress(number + 1, to)
        await asyncio.sleep(0)
    return to


@tool
async def stay(ctx: ToolContext) -> None:
    """Waits until nobody waits for it."""
    calls["began"] += 1
    await ctx.cancellation.wait()
    calls["left"] += 1


@tool
def stays() -> dict[str, int]:
    """Says how many have begun to stay, and how many have left."""
    return {"began": calls["began"], "left": calls["left"]}


app = dragoman.http_app([where, count_up, stay, stays], allow_unauthenticated=True)
in_starlette = Starlette(routes=[Mount("/tools", app)], lifespan=app.lifespan)
in_fastapi = FastAPI(lifespan=app.lifespan)
in_fastapi.mount("/tools", app)
