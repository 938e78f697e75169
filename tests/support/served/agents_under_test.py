"""A tool and three agents: one that counts, one that passes work on, one that fails."""

from __future__ import annotations

from typing import Any

import dragoman
from dragoman import AgentContext, AgentMessage
from dragoman.errors import NotFound


@dragoman.tool
def word() -> str:
    return "first"


@dragoman.agent("counter", effects="ledger")
async def counter(message: AgentMessage, ctx: AgentContext) -> dict[str, Any]:
    ctx.state["count"] = ctx.state.get("count", 0) + message.payload
    return {"count": ctx.state["count"]}


@dragoman.agent("passes-on")
class PassesOn:
    async def handle(self, message: AgentMessage, ctx: AgentContext) -> Any:
        return await ctx.request("counter", message.payload)


@dragoman.agent("fails")
async def fails(message: AgentMessage, ctx: AgentContext) -> None:
    raise NotFound("nothing here", {"what": message.payload})
