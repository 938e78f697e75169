"""When a server looks often for what others do to messages, and what it asks of the ledger while it is idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import AgentContext, AgentMessage, agent
from dragoman.errors import TimedOut
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.contract.engines import opened_storages
from tests.support.agents import Gate, agents_served, ledger_of, quiet
from tests.support.shared_ports import HeldElsewhere, SharedPort
from tests.support.waiting import PATIENCE, until


@agent("a", effects="ledger")
async def answer(message: AgentMessage, ctx: AgentContext) -> Any:
    return message.payload


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with opened_storages("memory", tmp_path) as (storage,):
        yield storage


async def test_who_waits_for_an_agent_of_another_process_looks_often(storage: Storage) -> None:
    gate = Gate()

    @agent("a", effects="ledger")
    async def late(message: AgentMessage, ctx: AgentContext) -> Any:
        await gate()
        return message.payload

    ledger, admin = ledger_of(storage)
    mine, theirs = SharedPort(ledger), HeldElsewhere(ledger)
    async with (
        asyncio.timeout(PATIENCE),
        agents_served(late, ledger=(mine, admin)) as holder,
        agents_served(late, ledger=(theirs, admin)) as other,
    ):
        here = asyncio.create_task(holder.coordinator.send_request("a", 1))
        await gate.arrived.wait()
        there = asyncio.create_task(other.coordinator.send_request("a", 2))
        await until(lambda: len(theirs.eager) == 1)
        assert not mine.eager  # Whoever waits for an agent of the same process is told by it.
        gate.opened.set()
        mine.tell_changed()
        assert await here == 1
        while not there.done():
            theirs.tell_changed()
            await quiet()
        assert await there == 2
        assert not theirs.eager


@pytest.mark.requirement("FND-AACP-44")
async def test_a_simple_message_to_an_agent_of_another_process_is_not_handled_after_its_time_is_up(
    storage: Storage,
) -> None:
    gate, handled = Gate(), []

    @agent("a", effects="ledger", timeout_ms=1000)
    async def late(message: AgentMessage, ctx: AgentContext) -> Any:
        handled.append(message.payload)
        if message.payload == "slow":
            await gate()
        return message.payload

    ledger, admin = ledger_of(storage)
    mine, theirs, clock = SharedPort(ledger), HeldElsewhere(ledger), ManualClock()
    async with (
        asyncio.timeout(PATIENCE),
        agents_served(late, ledger=(mine, admin), clock=clock) as holder,
        agents_served(late, ledger=(theirs, admin), clock=clock) as other,
    ):

        async def outcome(asked: asyncio.Task[Any]) -> Any:
            while not asked.done():
                mine.tell_changed()
                theirs.tell_changed()
                await quiet()
            return await asked

        slow = asyncio.create_task(holder.coordinator.send_request("a", "slow", timeout_ms=60_000))
        await gate.arrived.wait()
        sent = [asyncio.create_task(other.coordinator.send_message("a", {"type": "t", "payload": n})) for n in (1, 2)]
        await until(lambda: len(theirs.eager) == 2)
        clock.advance(2)
        for each in sent:
            with pytest.raises(TimedOut):
                await outcome(each)
        gate.opened.set()
        with pytest.raises(TimedOut):
            await outcome(slow)
        third = asyncio.create_task(other.coordinator.send_message("a", {"type": "t", "payload": 3}))
        assert await outcome(third) == 3
    assert handled == ["slow", 3]


async def test_an_idle_server_asks_for_agents_only_when_another_process_has_ended(storage: Storage) -> None:
    kept, admin = ledger_of(storage)
    ledger = HeldElsewhere(kept)
    async with agents_served(answer, ledger=(ledger, admin)) as served:
        await served.advance(2, step=0.5)
        before = ledger.asked["hold"]
        await served.advance(60, step=0.5)
        assert ledger.asked["hold"] == before
        ledger.tell_lost()
        await quiet()
        assert ledger.asked["hold"] == before + 1
