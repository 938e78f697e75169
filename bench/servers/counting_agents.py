"""Agents that count: `counting_agents.py KIND FOLDER NAME`. Kinds are `durable`, `memory` and `tools`.

`durable` sends requests through a ledger in the folder to agents whose names begin with NAME; `memory` sends messages
that are not kept, to an agent that does nothing; `tools` calls a tool that does nothing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from at_work import orders, repeated

import dragoman
from dragoman.process.collector import collect_less
from dragoman.process.loop import new_event_loop

MOST_AGENTS = 64


def counter(name: str) -> Any:
    @dragoman.agent(name, effects="ledger")
    async def count(message: dragoman.AgentMessage, ctx: dragoman.AgentContext) -> int:
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        return int(ctx.state["count"])

    return count


@dragoman.agent("idle", effects="ledger")
async def idle(message: dragoman.AgentMessage, ctx: dragoman.AgentContext) -> None:
    """Does nothing."""


@dragoman.tool()
async def noop() -> None:
    """Does nothing."""


async def durable(folder: str, name: str) -> None:
    names = [f"{name}-{number}" for number in range(MOST_AGENTS)]
    settings = {"storage": {"data_dir": folder, "space": "bench"}}
    async with dragoman.open([counter(each) for each in names], settings) as runtime:
        agents = runtime.agents
        assert agents is not None
        sent = 0
        for order in orders():

            def send(number: int, among: int = order["agents"]) -> Awaitable[Any]:
                return agents.send_request(names[number % among], {"number": number})

            sent += await repeated(send, order["senders"], order["seconds"])
            states = [await agents.read_state(each) for each in names]
            counted = sum(state.get("count", 0) for state in states)
            if counted != sent:
                raise SystemExit(f"{sent} requests were answered, and {counted} were counted")


async def memory(folder: str, name: str) -> None:
    async with dragoman.open([idle]) as runtime:
        agents = runtime.agents
        assert agents is not None
        message = dragoman.AgentMessage("go")
        await _repeat(lambda _: agents.send_message("idle", message))


async def tools(folder: str, name: str) -> None:
    async with dragoman.open([noop], {"resources": {"max_concurrent_executions": 64}}) as runtime:

        async def call(_: int) -> None:
            (await runtime.call("noop")).unwrap()

        await _repeat(call)


async def _repeat(send: Callable[[int], Awaitable[Any]]) -> None:
    for order in orders():
        await repeated(send, order["senders"], order["seconds"])


if __name__ == "__main__":
    collect_less(has_agents=True)
    kind = {"durable": durable, "memory": memory, "tools": tools}[sys.argv[1]]
    with asyncio.Runner(loop_factory=lambda: new_event_loop(4)) as runner:
        runner.run(kind(*sys.argv[2:4]))
