"""Jobs in servers: one of those on a data directory runs a job, heartbeats are sent, and plain servers keep nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.agents.agent import Agent, make_agent
from dragoman.agents.context import AgentContext
from dragoman.agents.message import AgentMessage
from dragoman.app import ServerOptions, configure, create_server
from dragoman.jobs.port import JobRun, Registry, Schedule
from dragoman.jobs.scheduler import LONGEST_FIRST_WAIT, LONGEST_STANDBY
from dragoman.parts.part import Contribution, Facilities, Part, ScheduledJob
from dragoman.runtime import Runtime
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.contract.engines import opened_storages
from tests.support.waiting import PATIENCE

PERIOD = 600.0
FIVE_MINUTES = 300.0


class Server:
    """A server with a job of its own that counts its runs. Servers with one folder also share a clock."""

    def __init__(self, clock: ManualClock, folder: Path | None, *agents: Agent, **options: Any) -> None:
        self.clock = clock
        self.runs = 0
        self.parts = (Part(name="counting", build=self._build),)
        settings = {} if folder is None else {"storage": {"data_dir": str(folder)}}
        settings |= options.pop("settings", {})
        config = configure(settings, parts=self.parts)
        self.options = ServerOptions(config=config, clock=clock, tools=agents, parts=self.parts, **options)

    def _build(self, given: Facilities) -> Contribution:
        return Contribution(loops=(given.scheduled(ScheduledJob("counting", PERIOD, self._run)),))

    async def _run(self) -> None:
        self.runs += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Runtime]:
        runtime = create_server(self.options)
        await runtime.start()
        try:
            yield runtime
        finally:
            await runtime.stop(0.1)


async def handle(message: AgentMessage, context: AgentContext) -> None:
    """Does nothing."""


async def rest() -> None:
    """Let tasks run, and the threads of the storage answer them."""
    for _ in range(20):
        await asyncio.sleep(0.002)


async def pass_time_until(clock: ManualClock, is_so: Callable[[], object]) -> None:
    """Let time pass in small steps until the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not is_so():
            clock.advance(LONGEST_FIRST_WAIT)
            await asyncio.sleep(0.002)


@pytest.mark.slow
async def test_one_of_two_servers_on_a_data_directory_runs_a_job_and_the_other_takes_over(tmp_path: Path) -> None:
    clock = ManualClock()
    first, second = Server(clock, tmp_path), Server(clock, tmp_path)
    async with first.running() as runtime, second.running() as later:
        for runs in (1, 2, 3):
            await pass_time_until(clock, lambda wanted=runs: first.runs + second.runs >= wanted)  # type: ignore[misc]
            assert {first.runs, second.runs} == {0, runs}
        leader, other = (first, second) if first.runs else (second, first)
        await (runtime if leader is first else later).stop(0.1)
        clock.advance(LONGEST_STANDBY)
        await rest()
        assert other.runs == 0
        await pass_time_until(clock, lambda: other.runs)
        assert (leader.runs, other.runs) == (3, 1)


async def entries_of(storage: Storage) -> dict[str, tuple[str, int]]:
    kept = await storage.port(Registry).entries()
    return {entry.name if entry.kind == "agent" else entry.kind: (entry.status, entry.revision) for entry in kept}


async def seen(clock: ManualClock, storage: Storage, revision: int) -> dict[str, tuple[str, int]]:
    """Let time pass until the entry of the process has this revision, and return the entries."""
    async with asyncio.timeout(PATIENCE):
        while (entries := await entries_of(storage)).get("process", ("", 0))[1] < revision:
            clock.advance(FIVE_MINUTES / 10)
            await asyncio.sleep(0.002)
    return entries


async def run_of_heartbeat(schedule: Schedule, after: float) -> JobRun:
    """The last run, when it is one that began after a moment: a run is stored after what it did."""
    async with asyncio.timeout(PATIENCE):
        while True:
            (run,) = [each for each in await schedule.runs() if each.job == "heartbeat"]
            if run.started_at > after:
                return run
            await asyncio.sleep(0.002)


@pytest.mark.requirement("MC-HB-01")
async def test_a_server_with_agents_sends_a_heartbeat_for_each_at_least_every_five_minutes(tmp_path: Path) -> None:
    clock = ManualClock()
    server = Server(clock, tmp_path, make_agent("ann", handle), make_agent("bob", handle))
    async with server.running() as runtime:
        storage = runtime.facilities.storage
        registry, schedule = storage.port(Registry), storage.port(Schedule)
        assert await seen(clock, storage, 1) == {
            "ann": ("healthy", 1),
            "bob": ("healthy", 1),
            "process": ("healthy", 1),
        }
        assert runtime.agents is not None
        runtime.agents.deliveries.workers["bob"].is_quarantined = True
        for number in (2, 3, 4):
            wanted = {"ann": ("healthy", number), "bob": ("degraded", number), "process": ("healthy", number)}
            assert await seen(clock, storage, number) == wanted
        (seen_at,) = {entry.last_seen_at for entry in await registry.entries()}
        run = await run_of_heartbeat(schedule, seen_at - FIVE_MINUTES / 2)
        assert run.started_at <= seen_at < run.started_at + FIVE_MINUTES
        assert run.next_due_at - run.started_at - run.duration_ms / 1000 <= FIVE_MINUTES
        assert run.facts == {"status": "healthy", "agents": 2, "degradedAgents": 1}
        assert [run.process] == [entry.name for entry in await registry.entries() if entry.kind == "process"]
    async with opened_storages("sqlite", tmp_path) as (storage,):
        assert await entries_of(storage) == {"ann": ("healthy", 4), "bob": ("degraded", 4)}


async def test_a_worker_that_is_not_the_owner_sends_heartbeats_and_runs_no_other_job(tmp_path: Path) -> None:
    clock = ManualClock()
    server = Server(clock, tmp_path, make_agent("ann", handle), is_owner=False)
    async with server.running() as runtime:
        storage = runtime.facilities.storage
        await seen(clock, storage, 3)
        jobs = [run.job for run in await storage.port(Schedule).runs()]
        assert (jobs, server.runs) == (["heartbeat"], 0)


@pytest.mark.parametrize("agents", [(), (make_agent("ann", handle),)])
def test_a_server_that_keeps_nothing_runs_jobs_and_opens_no_database(
    agents: tuple[Agent, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))

    async def run() -> None:
        clock = ManualClock()
        server = Server(clock, None, *agents)
        async with server.running():
            await pass_time_until(clock, lambda: server.runs == 2)

    asyncio.run(run())
    assert list(tmp_path.iterdir()) == []


async def test_a_server_without_agents_and_gateway_has_no_heartbeat(tmp_path: Path) -> None:
    async with Server(ManualClock(), tmp_path).running() as runtime:
        assert "jobs" not in runtime.supervisor.names


async def test_a_gateway_tidies_its_documents_by_a_job() -> None:
    clock = ManualClock()
    settings = {"gateway": {"enabled": True}, "storage": {"engine": "memory"}}
    async with Server(clock, None, settings=settings).running() as runtime:
        schedule, found = runtime.facilities.storage.port(Schedule), dict[str, JobRun]()
        while "knowledge.tidy" not in found:
            clock.advance(LONGEST_FIRST_WAIT)
            found = {run.job: run for run in await schedule.runs()}
    assert (found["knowledge.tidy"].outcome, found["knowledge.tidy"].facts) == ("completed", {"tidied": 0})
