"""The heartbeat: a process and its agents in the registry, as `health` and the agents' own states describe them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from dragoman.jobs.heartbeat import FORGOTTEN_AFTER, Heartbeat
from dragoman.jobs.port import Registry, RegistryEntry
from dragoman.storage.port import PurgeClock
from dragoman.testing import ManualClock
from tests.contract.engines import opened_storages
from tests.support.purge_clock import PromptPurgeClock, let_pass

SERVER = {"name": "tested", "version": "1.2.3"}


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    async with opened_storages("memory", tmp_path) as (storage,):
        yield storage.port(Registry)


class Beating:
    """A process whose health and agents are told."""

    def __init__(
        self, registry: Registry, name: str = "p1", clock: ManualClock | None = None, purge: PurgeClock | None = None
    ) -> None:
        self.registry = registry
        self.clock = clock or ManualClock()
        clocks = self.clock, purge or PromptPurgeClock(self.clock)
        self.status = "healthy"
        self.agents: dict[str, bool] = {}
        self.heartbeat = Heartbeat(
            self.registry, lambda: name, self._health, lambda: self.agents.items(), *clocks, "space"
        )

    def _health(self) -> dict[str, Any]:
        return {"server": SERVER, "status": self.status}

    async def seen(self) -> dict[str, tuple[str, int]]:
        return {entry.name: (entry.status, entry.revision) for entry in await self.registry.entries()}


@pytest.mark.requirement("MC-HB-01")
async def test_a_heartbeat_has_the_process_and_each_of_its_agents(registry: Registry) -> None:
    tested = Beating(registry)
    tested.agents = {"ann": True}
    tested.clock.advance(7)
    assert await tested.heartbeat.beat() == {"status": "healthy", "agents": 1, "degradedAgents": 0}
    common: dict[str, Any] = {
        "status": "healthy",
        "last_seen_at": tested.clock.now().timestamp(),
        "space": "space",
        "revision": 1,
    }
    assert await tested.registry.entries() == [
        RegistryEntry(kind="agent", name="ann", details={"process": "p1"}, **common),
        RegistryEntry(kind="process", name="p1", details={**SERVER, "pid": os.getpid()}, **common),
    ]


@pytest.mark.requirement("MC-HB-01")
@pytest.mark.parametrize("status", ["degraded", "unhealthy"])
async def test_everything_in_a_process_that_is_not_healthy_is_degraded(registry: Registry, status: str) -> None:
    tested = Beating(registry)
    tested.agents = {"ann": True, "bob": False}
    assert (await tested.heartbeat.beat())["degradedAgents"] == 1
    assert await tested.seen() == {"ann": ("healthy", 1), "bob": ("degraded", 1), "p1": ("healthy", 1)}
    tested.status = status
    assert await tested.heartbeat.beat() == {"status": "degraded", "agents": 2, "degradedAgents": 2}
    assert await tested.seen() == {"ann": ("degraded", 2), "bob": ("degraded", 2), "p1": ("degraded", 2)}


async def test_many_agents_are_written_in_steps(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, beat = [], registry.beat

    async def counted(entries: Iterable[RegistryEntry]) -> None:
        given = tuple(entries)
        steps.append(len(given))
        await beat(given)

    monkeypatch.setattr(registry, "beat", counted)
    tested = Beating(registry)
    tested.agents = {f"a{number}": True for number in range(1_203)}
    await tested.heartbeat.beat()
    assert (steps, len(await tested.seen())) == ([500, 500, 204], 1_204)


async def test_a_process_that_stops_removes_its_own_entry_alone(registry: Registry) -> None:
    first, second = Beating(registry, "p1"), Beating(registry, "p2")
    first.agents = {"ann": True}
    for each in (first, second):
        await each.heartbeat.leave()
        await each.heartbeat.beat()
    await first.heartbeat.leave()
    assert await second.seen() == {"ann": ("healthy", 1), "p2": ("healthy", 1)}


async def test_entries_without_a_heartbeat_for_a_day_are_forgotten(registry: Registry) -> None:
    tested = Beating(registry)
    tested.agents = {f"a{number}": True for number in range(1_203)}
    await tested.heartbeat.beat()
    tested.clock.advance(FORGOTTEN_AFTER)
    assert await tested.heartbeat.forget() == {"forgotten": 0}
    tested.agents = {"a7": True}
    await tested.heartbeat.beat()
    tested.clock.advance(1)
    assert await tested.heartbeat.forget() == {"forgotten": 1_202}
    assert await tested.seen() == {"a7": ("healthy", 2), "p1": ("healthy", 2)}


async def test_a_clock_that_is_two_days_ahead_for_a_moment_forgets_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened_storages("memory", tmp_path, clock) as (storage,):
        purge = storage.port(PurgeClock)
        tested = Beating(storage.port(Registry), clock=clock, purge=purge)
        await tested.heartbeat.beat()
        await purge.now()
        clock.jump(2 * FORGOTTEN_AFTER)
        assert await tested.heartbeat.forget() == {"forgotten": 0}
        clock.jump(-2 * FORGOTTEN_AFTER)
        await let_pass(purge, clock, FORGOTTEN_AFTER)
        assert await tested.heartbeat.forget() == {"forgotten": 1}
