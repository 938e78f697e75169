"""The contract of `Schedule` and `Registry`, for every engine, also out of several processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.jobs.port import GONE_SECONDS, MOST_RUNS, JobRun, Registry, RegistryEntry, Schedule
from dragoman.storage.port import Storage
from tests.contract.engines import SITES, opened_storages

NOW = 1_700_000_000.0
RUN = JobRun(job="tidy", process="p1", started_at=NOW, duration_ms=1.5, outcome="completed", next_due_at=NOW + 60)
AGENT = RegistryEntry(kind="agent", name="ann", status="healthy", last_seen_at=NOW)


@pytest.fixture(params=SITES, ids=str)
async def storages(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Storage]]:
    engine, count = request.param
    async with opened_storages(engine, tmp_path, count=count) as storages:
        yield storages


@pytest.fixture
def schedules(storages: list[Storage]) -> list[Schedule]:
    return [storage.port(Schedule) for storage in storages]


@pytest.fixture
def registries(storages: list[Storage]) -> list[Registry]:
    return [storage.port(Registry) for storage in storages]


# Who leads.


async def test_one_process_leads_a_job_and_keeps_the_lead(schedules: list[Schedule]) -> None:
    first, *others = schedules
    assert await first.lead("tidy")
    assert [await each.lead("tidy") for each in others] == [False] * len(others)
    assert await first.lead("tidy")


async def test_each_job_has_a_leader_of_its_own(schedules: list[Schedule]) -> None:
    assert await schedules[0].lead("tidy")
    assert await schedules[-1].lead("another")
    assert await schedules[0].lead("tidy")


async def test_of_many_that_ask_at_the_same_time_one_process_leads(schedules: list[Schedule]) -> None:
    answers = await asyncio.gather(*(schedule.lead("tidy") for _ in range(5) for schedule in schedules))
    leading = [any(answers[index :: len(schedules)]) for index in range(len(schedules))]
    assert leading.count(True) == 1


async def test_when_the_leader_closes_another_process_can_lead(engine: str, tmp_path: Path) -> None:
    async with opened_storages(engine, tmp_path, count=3) as (first, second, third):
        assert await first.port(Schedule).lead("tidy")
        assert not await second.port(Schedule).lead("tidy")
        await first.close()
        assert await second.port(Schedule).lead("tidy")
        assert not await third.port(Schedule).lead("tidy")


# Runs.


async def test_a_run_is_kept_as_it_was_noted_until_the_next_of_its_process(schedules: list[Schedule]) -> None:
    failed = replace(RUN, outcome="failed", error="INTERNAL", error_type="OSError", facts={"ü": [1, None, {"a": 2.5}]})
    await schedules[0].note(failed)
    assert await schedules[-1].runs() == [failed]
    later = replace(RUN, started_at=NOW + 60, next_due_at=NOW + 120)
    await schedules[0].note(later)
    assert await schedules[-1].runs() == [later]


async def test_runs_are_listed_by_job_the_newest_first(schedules: list[Schedule]) -> None:
    other = replace(RUN, process="p2", started_at=NOW + 5)
    beat = replace(RUN, job="beat", process="p2")
    for run in (RUN, other, beat):
        await schedules[0].note(run)
    assert await schedules[-1].runs() == [beat, other, RUN]


async def test_runs_of_processes_that_are_long_gone_are_forgotten(schedules: list[Schedule]) -> None:
    weekly = replace(RUN, job="weekly", next_due_at=NOW + 7 * 86_400)
    for run in (RUN, weekly):
        await schedules[0].note(run)
    almost = replace(RUN, process="p2", started_at=RUN.next_due_at + GONE_SECONDS, next_due_at=NOW + 10_000)
    await schedules[-1].note(almost)
    assert RUN in await schedules[0].runs()
    then = replace(almost, started_at=almost.started_at + 1)
    await schedules[-1].note(then)
    assert await schedules[0].runs() == [then, weekly]


async def test_the_runs_of_a_job_are_bounded_however_many_processes_there_are(schedules: list[Schedule]) -> None:
    await schedules[0].note(replace(RUN, job="other"))
    for number in range(MOST_RUNS + 3):
        await schedules[number % len(schedules)].note(replace(RUN, process=f"p{number}", started_at=NOW + number))
    kept = [run.process for run in await schedules[0].runs() if run.job == "tidy"]
    assert kept == [f"p{number}" for number in range(MOST_RUNS + 2, 2, -1)]
    assert len(await schedules[0].runs()) == MOST_RUNS + 1


# The registry.


@pytest.mark.requirement("MC-HB-01")
async def test_each_heartbeat_updates_the_entry_and_counts_its_revision(registries: list[Registry]) -> None:
    await registries[0].beat([AGENT])
    assert await registries[-1].entries() == [replace(AGENT, revision=1)]
    for number in range(2, 5):
        later = replace(AGENT, status="degraded", last_seen_at=NOW + number, details={"number": number}, revision=77)
        await registries[number % len(registries)].beat([later])
        assert await registries[0].entries() == [replace(later, revision=number)]


async def test_entries_differ_by_space_tenant_kind_and_name_and_are_listed_in_that_order(
    registries: list[Registry],
) -> None:
    entries = [
        AGENT,
        replace(AGENT, name="bob"),
        replace(AGENT, kind="process"),
        replace(AGENT, tenant="acme"),
        replace(AGENT, space="other"),
    ]
    await registries[0].beat(reversed(entries))
    await registries[-1].beat(entries[:1])
    assert await registries[0].entries() == [
        replace(AGENT, revision=2),
        *(replace(each, revision=1) for each in entries[1:]),
    ]


async def test_an_entry_that_is_removed_begins_anew(registries: list[Registry]) -> None:
    other = replace(AGENT, tenant="acme")
    await registries[0].beat([AGENT, other])
    await registries[0].beat([AGENT])
    assert await registries[-1].remove(replace(AGENT, status="degraded", last_seen_at=0.0))
    assert not await registries[0].remove(AGENT)
    assert await registries[0].entries() == [replace(other, revision=1)]
    await registries[0].beat([AGENT])
    assert replace(AGENT, revision=1) in await registries[-1].entries()


async def test_old_entries_are_forgotten_the_oldest_first_and_no_more_than_asked(registries: list[Registry]) -> None:
    await registries[0].beat(replace(AGENT, name=f"a{number}", last_seen_at=NOW + number) for number in range(5))
    assert await registries[-1].forget(NOW + 3, 2) == 2
    assert [entry.name for entry in await registries[0].entries()] == ["a2", "a3", "a4"]
    assert [await registries[0].forget(NOW + 3, 2) for _ in range(2)] == [1, 0]
    assert [entry.name for entry in await registries[0].entries()] == ["a3", "a4"]
