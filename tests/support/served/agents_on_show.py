"""Agents for the explorer's page: they pass work along, fail until they are mended, and say hostile things."""

from typing import Any

from dragoman import AgentContext, AgentMessage, agent
from dragoman.errors import ResourceExhausted

HOSTILE = "<img src=x onerror='window.pwned=1'><script>window.pwned=1</script>"


@agent("front", effects="ledger")
async def front(message: AgentMessage, ctx: AgentContext) -> Any:
    for _ in range(message.payload.get("copies", 1)):
        await ctx.send("back", message.payload, type="pass on")
    return {"said": HOSTILE}


@agent("back", effects="ledger")
async def back(message: AgentMessage, ctx: AgentContext) -> None:
    if message.type == "mend":
        ctx.state["is_mended"] = True
    elif message.payload.get("fails") and not ctx.state.get("is_mended"):
        raise ResourceExhausted(HOSTILE, {"retryable": True})
