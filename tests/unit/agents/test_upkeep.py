"""What processes of one server tell each other about the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import dragoman
from dragoman import AgentContext, AgentMessage, agent, tool
from dragoman.agents.ledger import Query
from dragoman.changes import Change, LedgerChanged
from dragoman.testing import ManualClock
from tests.support.waiting import PATIENCE, until


@agent("a", effects="ledger")
async def answer(message: AgentMessage, ctx: AgentContext) -> Any:
    return message.payload


async def test_a_process_wakes_the_holder_of_an_agent_and_is_woken_when_there_is_an_answer(tmp_path: Path) -> None:
    by_holder: list[Change] = []
    by_other: list[Change] = []
    config = {"storage": {"data_dir": str(tmp_path)}}
    async with dragoman.open([answer], config) as holder, dragoman.open([answer], config) as other:
        holder.shared.publish, other.shared.publish = by_holder.append, by_other.append
        assert holder.agents is not None
        assert other.agents is not None
        assert await holder.agents.send_request("a", 1) == 1
        assert await other.agents.send_request("a", 2) == 2
        await until(lambda: bool(by_holder and by_other))
        assert (by_other[0], by_holder[0]) == (LedgerChanged(), LedgerChanged())
        before = len(by_holder)
        assert await holder.agents.send_request("a", 3) == 3
        holder.apply(LedgerChanged())  # Nothing to find is no harm.
    assert len(by_holder) == before  # Whoever waited for it is in the same process.


@tool(task="optional")
async def job() -> int:
    """Does nothing."""
    return 1


async def test_a_server_with_tasks_forgets_no_request_of_an_agent_before_its_retries_are_over(tmp_path: Path) -> None:
    clock = ManualClock()
    config = {"storage": {"data_dir": str(tmp_path)}, "aacp": {"default_ttl_ms": 60_000}}  # Retries: 150 s.
    async with asyncio.timeout(PATIENCE), dragoman.open([answer, job], config, clock=clock) as server:
        await server.create_task("job", {})  # The store of tasks is open, and purged.
        assert server.agents is not None

        async def count() -> int:
            return len(await server.agents.deliveries.admin.page(Query()))

        await server.agents.send_request("a", 1)
        for _ in range(6):
            clock.advance(30.0)
            for _ in range(3):
                await server.call("job")  # The loops have had their turn.
        assert await count() == 2
        await until_read(count, 0, clock)


async def until_read(count: Callable[[], Awaitable[int]], wanted: int, clock: ManualClock) -> None:
    while await count() != wanted:
        clock.advance(30.0)
