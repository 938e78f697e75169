"""Agents that do as the files in a folder say, for tests of what operators do beside a server."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from dragoman import AgentContext, AgentMessage, agent

FOLDER = Path(os.environ["OPERATED_FOLDER"])


@agent("counter", effects="ledger")
async def counter(message: AgentMessage, ctx: AgentContext) -> Any:
    """Counts what it is told."""
    ctx.state["count"] = ctx.state.get("count", 0) + 1
    return {"count": ctx.state["count"], "payload": message.payload}


@agent("patient", effects="ledger")
async def patient(message: AgentMessage, ctx: AgentContext) -> None:
    """Handles nothing until there is a file `open`."""
    while not (FOLDER / "open").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    ctx.state["seen"] = [*ctx.state.get("seen", ()), message.payload]


@agent("fragile", effects="ledger", max_restarts=100)
async def fragile(message: AgentMessage, ctx: AgentContext) -> None:
    """Fails until there is a file `mended`."""
    if not (FOLDER / "mended").exists():
        raise RuntimeError("not mended")
    ctx.state["seen"] = [*ctx.state.get("seen", ()), message.payload]
