"""What processes of one server tell each other about the ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import AgentContext, AgentMessage, agent, tool
from dragoman.agents.ledger import Query
from dragoman.changes import Change, LedgerChanged
from dragoman.testing import ManualClock, open_server
from tests.support.agents import quiet
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


@pytest.mark.slow
async def test_a_server_with_tasks_forgets_no_request_of_an_agent_before_its_retries_are_over(tmp_path: Path) -> None:
    clock = ManualClock()
    config = {"storage": {"data_dir": str(tmp_path)}, "aacp": {"default_ttl_ms": 60_000}}  # Retries: 150 s.
    async with asyncio.timeout(PATIENCE), dragoman.open([answer, job], config, clock=clock) as server:
        await server.create_task("job", {})  # The store of tasks is open, and purged.
        assert server.agents is not None

        async def count() -> int:
            return len(await server.agents.deliveries.admin.page(Query()))

        async def count_after(seconds: float) -> int:
            clock.advance(seconds)
            for _ in range(3):
                await server.call("job")  # The loops have had their turn.
            return await count()

        await count_after(30)  # The first look; what is purged goes by what the looks agree on, an hour later.
        await count_after(3_470)
        await server.agents.send_request("a", 1)
        await count_after(130)  # The second hour begins behind the time to live, and before the end of the retries.
        assert await count_after(3_600) == 2
        while await count_after(3_600):
            pass


@pytest.mark.slow
async def test_messages_are_purged_when_two_looks_an_hour_apart_found_them_expired() -> None:
    clock = ManualClock()
    config = {"aacp": {"default_ttl_ms": 60_000}}
    async with asyncio.timeout(PATIENCE), open_server([answer], config, clock=clock) as server:
        agents = server.runtime.agents
        assert agents is not None

        async def kept_after(seconds: float) -> int:
            clock.advance(seconds)
            await quiet()
            return len(await agents.deliveries.admin.page(Query(limit=10)))

        await agents.send_reliable_message("a", 1)
        await until(lambda: server.runtime.runner.under_way == 0)
        assert await kept_after(40) == 1
        clock.jump(7 * 86_400)  # The clock is wrong for a moment.
        assert await kept_after(40) == 1
        clock.jump(-7 * 86_400)
        assert await kept_after(3_600) == 1
        while await kept_after(3_600):
            pass
