"""Three agents that pass work along: a shop that takes orders, a workshop that fails now and then, and a post office.

    dragoman serve examples/agents.py --transport streamable-http --explorer --allow-execute

Open the printed address, and call `agent/sendRequest` to order six cups:

    {"targetAgentId": "shop", "message": {"type": "order", "payload": {"item": "cup", "count": 6}}}

The answer comes at once, and the workshop makes the cups one after the other. Choose Agents on the page to watch them.
Kill the server while it works (`kill -9`) and start it again: it goes on where it was, and no cup is made twice.

Then order a ring. There is no gold, so it fails at every attempt and becomes a dead letter. Bring gold, by sending
`workshop` a message of type `restock` with the payload `{"gold": 1}`, and redrive the dead letter from the page.
"""

import asyncio
import random
from typing import Any

from dragoman import AgentContext, AgentMessage, agent
from dragoman.errors import InvalidArgument, ResourceExhausted

SECONDS_A_PIECE = 0.5
SLIPS = 0.2
"""How likely the workshop is to drop a piece."""


# `effects="ledger"` says that a handler does nothing but change `ctx.state`, send messages and return a response. These
# are stored together when the handler returns. If the process ends before that moment, nothing has happened, and the
# message is handled again by the next process.
@agent("shop", effects="ledger")
async def shop(message: AgentMessage, ctx: AgentContext) -> dict[str, Any]:
    """Takes orders, and has each piece made."""
    order = message.payload if isinstance(message.payload, dict) else {}
    item, count = order.get("item"), order.get("count", 1)
    if not isinstance(item, str) or not isinstance(count, int) or not 1 <= count <= 100:
        # A `ToolError` is an answer to the sender. It is not tried again, unless it says `retryable`.
        raise InvalidArgument("An order has an item, and a count from 1 to 100")
    number = ctx.state["orders"] = ctx.state.get("orders", 0) + 1
    for piece in range(1, count + 1):
        # Nothing is sent before this handler has returned, and nothing at all if it fails.
        await ctx.send("workshop", {"order": number, "piece": piece, "item": item}, type="make")
    return {"order": number, "pieces": count}


# An agent can be a class. `start` runs before the first message, and again after every restart, on a new instance: what
# must not be lost belongs in `ctx.state`. More than `max_restarts` within a minute would stop the agent.
@agent("workshop", effects="ledger", max_restarts=1_000)
class Workshop:
    """Makes pieces, drops some of them, and needs gold for rings."""

    async def start(self, ctx: AgentContext) -> None:
        ctx.logger.info("the workshop opens", {"made": ctx.state.get("made", 0)})

    async def handle(self, message: AgentMessage, ctx: AgentContext) -> dict[str, Any]:
        if message.type == "restock":
            gold = ctx.state["gold"] = ctx.state.get("gold", 0) + message.payload["gold"]
            return {"gold": gold}
        await asyncio.sleep(SECONDS_A_PIECE)  # Long enough to be interrupted.
        piece = message.payload
        ctx.state["made"] = ctx.state.get("made", 0) + 1
        if piece["item"] == "ring":
            if not ctx.state.get("gold"):
                # Tried again, because it says so, and a dead letter after the last attempt.
                raise ResourceExhausted("There is no gold", {"retryable": True})
            ctx.state["gold"] -= 1
        if random.random() < SLIPS:
            # Any other exception is a crash: the state is as it was before the message, the agent is restarted, and the
            # message is tried again. Later messages of the same sender wait for it, so the order stays the same.
            raise RuntimeError("a piece was dropped")
        await ctx.send("post", piece, type="ship")
        return piece


@agent("post", effects="ledger")
async def post(message: AgentMessage, ctx: AgentContext) -> int:
    """Counts what was shipped, and lists the last ten pieces."""
    piece = message.payload
    words = f"{piece['item']} {piece['piece']} of order {piece['order']}"
    ctx.state["last"] = [*ctx.state.get("last", []), words][-10:]
    shipped: int = ctx.state.get("shipped", 0) + 1
    ctx.state["shipped"] = shipped
    return shipped
