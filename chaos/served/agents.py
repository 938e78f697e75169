"""The agents of the servers that are killed. Each one records what it has done, so that it can be checked."""

from __future__ import annotations

import os
from typing import Any

from dragoman import AgentContext, AgentMessage, agent
from dragoman.errors import ResourceExhausted

OUTSIDE = "CHAOS_OUTSIDE"
"""The variable with the path of the file that stands for the world outside of the ledger."""

_failed: set[str] = set()


def _record(message: AgentMessage, ctx: AgentContext) -> int:
    count: int = ctx.state.get("count", 0) + 1
    ctx.state["count"] = count
    ctx.state[message.payload] = count
    return count


def _act_outside(agent_id: str, item: str) -> None:
    descriptor = os.open(os.environ[OUTSIDE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{agent_id} {item}\n".encode())
    finally:
        os.close(descriptor)


@agent("tally", effects="ledger")
async def tally(message: AgentMessage, ctx: AgentContext) -> Any:
    """Records the item."""
    return _record(message, ctx)


@agent("relay", effects="ledger")
async def relay(message: AgentMessage, ctx: AgentContext) -> Any:
    """Records the item, and sends it on."""
    await ctx.send("sink", message.payload)
    return _record(message, ctx)


@agent("sink", effects="ledger")
async def sink(message: AgentMessage, ctx: AgentContext) -> Any:
    """Records what was sent on."""
    return _record(message, ctx)


@agent("asker", effects="ledger")
async def asker(message: AgentMessage, ctx: AgentContext) -> Any:
    """Asks another agent before it records the item."""
    await ctx.request("tally", f"{message.payload} of asker")
    return _record(message, ctx)


@agent("flaky", effects="ledger")
async def flaky(message: AgentMessage, ctx: AgentContext) -> Any:
    """Fails when a process first handles an item; succeeds when it tries again."""
    count = _record(message, ctx)
    if message.payload not in _failed:
        _failed.add(message.payload)
        raise ResourceExhausted("not at once", {"retryable": True})
    return count


@agent("outside")
async def outside(message: AgentMessage, ctx: AgentContext) -> Any:
    """Does something that the ledger knows nothing of, and that must not be repeated."""
    _act_outside("outside", message.payload)
    return _record(message, ctx)


@agent("again", idempotent=True)
async def again(message: AgentMessage, ctx: AgentContext) -> Any:
    """Does something that the ledger knows nothing of, and that may be repeated."""
    _act_outside("again", message.payload)
    return _record(message, ctx)
