"""What Prometheus is shown about agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman import AgentContext, AgentMessage, agent
from dragoman.agents.agent import make_agent
from dragoman.agents.ledger import AgentQueue, LedgerAdmin
from dragoman.errors import StorageFailed, TimedOut
from dragoman.storage.port import Storage
from dragoman.telemetry.metrics import MOST_TOOLS
from tests.contract.engines import opened_storages
from tests.support.agents import AgentServer, Gate, agents_served, ledger_of
from tests.support.waiting import until


def figures(served: AgentServer) -> dict[str, float]:
    """The lines of the page that are about agents."""
    runtime = served.server.runtime
    if runtime.metrics is None:
        runtime.http()
    assert runtime.metrics is not None
    lines = runtime.metrics.snapshot().page()[0].decode().splitlines()
    words = [line.removeprefix("dragoman_").rsplit(" ", 1) for line in lines if line.startswith("dragoman_agent")]
    return {name: float(value) for name, value in words}


async def test_what_waits_is_counted_in_memory_and_in_the_ledger(tmp_path: Path) -> None:
    gate = Gate()

    @agent("slow", effects="ledger")
    async def slow(message: AgentMessage, ctx: AgentContext) -> None:
        await gate()

    @agent("idle")
    async def idle(message: AgentMessage, ctx: AgentContext) -> None:
        """Never asked."""

    async with agents_served(slow, idle, folder=tmp_path, config={"aacp": {"mailbox_size": 2}}) as served:
        for number in range(5):
            await served.coordinator.send_reliable_message("slow", number)
        await gate.arrived.wait()
        await served.rest()
        served.clock.advance(5.0)
        await until(lambda: figures(served)['agent_queue_messages{agent="slow"}'] == 5)
        assert figures(served) == {
            'agent_mailbox_messages{agent="idle"}': 0,
            'agent_mailbox_messages{agent="slow"}': 2,
            'agent_queue_messages{agent="idle"}': 0,
            'agent_queue_messages{agent="slow"}': 5,
            'agent_oldest_message_seconds{agent="idle"}': 0,
            'agent_oldest_message_seconds{agent="slow"}': 5,
            "agent_retries_total": 0,
            "agent_dead_letters_total": 0,
            "agent_takeovers_total": 0,
            "agents_quarantined": 0,
        }
        gate.opened.set()
        await served.settled()
        await served.rest()
        served.clock.advance(5.0)
        await until(lambda: figures(served)['agent_queue_messages{agent="slow"}'] == 0)
        assert figures(served)['agent_oldest_message_seconds{agent="slow"}'] == 0


async def test_retries_and_dead_letters_are_counted() -> None:
    @agent("broken", effects="ledger", max_restarts=50)
    async def broken(message: AgentMessage, ctx: AgentContext) -> None:
        raise RuntimeError("on purpose")

    async with agents_served(broken, config={"aacp": {"max_attempts": 3}}) as served:
        await served.coordinator.send_reliable_message("broken", 1)
        await served.advance(20.0, step=0.5)
        shown = figures(served)
        assert (shown["agent_retries_total"], shown["agent_dead_letters_total"]) == (2, 1)


async def test_an_agent_whose_handler_goes_on_after_its_deadline_is_counted() -> None:
    gate = Gate()

    @agent("deaf", timeout_ms=1000)
    async def deaf(message: AgentMessage, ctx: AgentContext) -> None:
        while not gate.opened.is_set():
            try:
                await gate()
            except asyncio.CancelledError:
                continue

    async with agents_served(deaf) as served:
        asked = asyncio.ensure_future(served.coordinator.send_message("deaf", {"type": "t"}))
        await gate.arrived.wait()
        await served.advance(2.0, step=0.5)
        with pytest.raises(TimedOut):
            await asked
        assert figures(served)["agents_quarantined"] == 1
        gate.opened.set()
        await until(lambda: figures(served)["agents_quarantined"] == 0)


async def test_agents_beyond_the_bound_share_one_label() -> None:
    gate = Gate()

    async def handle(message: AgentMessage, ctx: AgentContext) -> None:
        await gate()

    made = [make_agent(f"agent-{number:03}", handle, effects="ledger") for number in range(MOST_TOOLS + 3)]
    async with agents_served(*made) as served:
        for each in made[-3:]:
            await served.coordinator.send_reliable_message(each.id, 1)
            await served.advance(1.0, step=0.5)
        await served.rest()
        served.clock.advance(5.0)
        await until(lambda: figures(served)['agent_queue_messages{agent="other"}'] == 3)
        shown = figures(served)
        assert sum(name.startswith("agent_queue_messages") for name in shown) == MOST_TOOLS + 1
        assert shown['agent_oldest_message_seconds{agent="other"}'] == 8
        gate.opened.set()


class CountedAdmin:
    """Notes what it is asked for, and fails when it is told to."""

    def __init__(self, admin: LedgerAdmin) -> None:
        self._admin = admin
        self.asked: list[tuple[int, int]] = []
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._admin, name)

    async def queues(self, agents: Sequence[str], most: int) -> dict[str, AgentQueue]:
        found = await self._admin.queues(agents, most)
        self.asked.append((len(agents), most))  # Now, as the loop that asks then waits for the clock at once.
        if self.fails:
            raise StorageFailed("no luck")
        return found


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    async with opened_storages("memory", tmp_path) as (storage,):
        yield storage


def made_with(storage: Storage, count: int) -> tuple[CountedAdmin, Mapping[str, Any], list[Any]]:
    async def handle(message: AgentMessage, ctx: AgentContext) -> None:
        """Does nothing."""

    ledger, kept = ledger_of(storage)
    admin = CountedAdmin(kept)
    return admin, {"ledger": (ledger, admin)}, [make_agent(f"a{each}", handle) for each in range(count)]


@pytest.mark.parametrize(("count", "most"), [(1, 10_000), (40, 2_500)])
async def test_a_scrape_reads_nothing_and_the_loop_counts_no_more_than_a_bound(
    storage: Storage, count: int, most: int
) -> None:
    admin, options, made = made_with(storage, count)
    async with agents_served(*made, **options) as served:
        await until(lambda: admin.asked == [(count, most)])
        for _ in range(10):
            figures(served)
        assert len(admin.asked) == 1
        served.clock.advance(5.0)
        await until(lambda: len(admin.asked) == 2)


async def test_a_ledger_that_cannot_be_read_leaves_the_figures_as_they_were(storage: Storage) -> None:
    admin, options, made = made_with(storage, 1)
    async with agents_served(*made, **options) as served:
        await until(lambda: admin.asked)
        admin.fails = True
        for number in range(10):
            served.clock.advance(5.0)
            await until(lambda number=number: len(admin.asked) == number + 2)  # type: ignore[misc]
        assert figures(served)['agent_queue_messages{agent="a0"}'] == 0
        warned = [each["message"] for each in served.server.log if each["level"] == "warn"]
        assert "the queues of agents cannot be counted" in warned
        assert served.server.runtime.supervisor.missing == ()
