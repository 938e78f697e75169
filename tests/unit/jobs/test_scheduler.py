"""The scheduler: jobs run when they are due, in one process or in each, and every run leaves a record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.errors import NotFound, StorageBusy, StorageFailed
from dragoman.jobs.port import JobRun, JobStores
from dragoman.jobs.scheduler import LONGEST_FIRST_WAIT, LONGEST_STANDBY, Scheduler, seconds_until_due
from dragoman.parts.part import ScheduledJob
from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.testing import ManualClock, SequentialIds

PERIOD = 600.0


class Watched:
    """A job that counts its runs, and returns or raises what it is told to."""

    def __init__(self, clock: ManualClock, **options: Any) -> None:
        self.clock = clock
        self.at: list[float] = []
        self.outcome: Mapping[str, Any] | BaseException | None = None
        self.job = ScheduledJob("watched", PERIOD, self._run, **options)

    async def _run(self) -> Mapping[str, Any] | None:
        self.at.append(self.clock.monotonic())
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


class PlainSchedule:
    """A `Schedule` that keeps the newest run of each process, and whose lock is free."""

    def __init__(self) -> None:
        self._runs: dict[str, JobRun] = {}

    async def lead(self, job: str) -> bool:
        return True

    async def note(self, run: JobRun) -> None:
        self._runs[run.process] = run

    async def runs(self) -> list[JobRun]:
        return list(self._runs.values())


class Process:
    """A process with one job. Those that are given the same schedule share it."""

    def __init__(
        self,
        schedule: PlainSchedule | None = None,
        clock: ManualClock | None = None,
        *,
        random: float = 0.0,
        is_owner: bool = True,
        **options: Any,
    ) -> None:
        self.schedule, self.clock = schedule or PlainSchedule(), clock or ManualClock()
        self.watched = Watched(self.clock, **options)
        self.entries: list[Entry] = []
        logger = StructuredLogger(self.entries.append, self.clock)
        others: Any = None  # They are for the heartbeat.
        stores = JobStores(self.schedule, others, others)
        ids = SequentialIds()
        self.scheduler = Scheduler(lambda: stores, self.clock, logger, ids, lambda: random, is_owner=is_owner)
        self.task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.task = asyncio.create_task(self._keep_running())
        await settle()
        try:
            yield
        finally:
            self.task.cancel()
            await asyncio.wait([self.task])

    async def _keep_running(self) -> None:
        await self.scheduler.loop(self.watched.job).run()

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await settle()

    @property
    def log(self) -> list[dict[str, Any]]:
        return [each for each in self.entries if isinstance(each, dict)]


async def settle() -> None:
    """Let tasks that are due run."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", ["", "Tidy", "../tidy", "a/b", "tidy\n", "x" * 65, ".tidy"])
def test_a_name_that_cannot_be_that_of_a_file_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        ScheduledJob(name, 1.0, Watched(ManualClock()).job.run)


@pytest.mark.parametrize("period", [0.0, -1.0, float("nan")])
def test_a_period_of_no_time_is_refused(period: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        ScheduledJob("tidy", period, Watched(ManualClock()).job.run)


# When a job runs.


@pytest.mark.parametrize("random", [0.0, 0.5, 0.999])
@pytest.mark.parametrize("everywhere", [False, True])
async def test_a_new_job_runs_soon_and_then_once_a_period_less_up_to_a_tenth(random: float, everywhere: bool) -> None:
    process = Process(random=random, everywhere=everywhere)
    first, wait = LONGEST_FIRST_WAIT * random, PERIOD * (1 - 0.1 * random)
    async with process.running():
        await process.pass_time(first)
        await process.pass_time(0)
        for number in range(1, 4):
            assert len(process.watched.at) == number
            await process.pass_time(wait - 0.01)
            assert len(process.watched.at) == number
            await process.pass_time(0.02)
    assert len(process.watched.at) == 4


async def test_the_first_run_of_a_frequent_job_is_within_a_tenth_of_its_period() -> None:
    process = Process(random=0.999)
    process.watched.job = ScheduledJob("often", 5.0, process.watched.job.run)
    async with process.running():
        await process.pass_time(0.49)
        assert process.watched.at == []
        await process.pass_time(0.01)
        await process.pass_time(0)
        assert len(process.watched.at) == 1


async def test_a_restart_does_not_run_again_what_is_not_due() -> None:
    first = Process()
    async with first.running():
        await first.pass_time(0)
        await first.pass_time(0)
        await first.pass_time(PERIOD / 2)
    second = Process(first.schedule, first.clock)
    async with second.running():
        await second.pass_time(0)
        await second.pass_time(PERIOD / 2 - 1)
        assert (len(first.watched.at), second.watched.at) == (1, [])
        await second.pass_time(1)
        assert second.watched.at == [PERIOD]


async def test_a_restart_runs_at_once_what_was_due_meanwhile() -> None:
    first = Process()
    async with first.running():
        await first.pass_time(0)
        await first.pass_time(0)
    first.clock.advance(10 * PERIOD)
    second = Process(first.schedule, first.clock)
    async with second.running():
        await second.pass_time(0)
        await second.pass_time(0)
        assert (first.watched.at, second.watched.at) == ([0.0], [10 * PERIOD])


async def test_a_job_that_runs_everywhere_does_not_wait_for_runs_of_other_processes() -> None:
    schedule, clock = PlainSchedule(), ManualClock()
    processes = [Process(schedule, clock, everywhere=True) for _ in range(2)]
    for process in processes:
        async with process.running():
            await process.pass_time(0)
    assert [process.watched.at for process in processes] == [[0.0], [0.0]]


NOW = 1_700_000_000.0
LAST = JobRun(job="daily", process="p", started_at=NOW, duration_ms=5_000, outcome="failed", next_due_at=NOW + 86_000)


@pytest.mark.parametrize(
    ("runs", "now", "wait"),
    [
        ([], NOW, 0.0),
        ([LAST], NOW + 1, 85_999.0),
        ([LAST], NOW + 86_001, 0.0),
        ([LAST], NOW - 1, 0.0),
        ([replace(LAST, job="other")], NOW, 0.0),
        ([replace(LAST, next_due_at=NOW + 7 * 86_400)], NOW + 5, 86_400.0),
        ([LAST, replace(LAST, started_at=NOW - 9, next_due_at=NOW - 5)], NOW, 86_000.0),
    ],
    ids=[
        "never ran",
        "not due",
        "overdue",
        "clock set back",
        "other job",
        "longer period before",
        "older run of another",
    ],
)
def test_the_last_run_of_any_process_decides_when_a_job_is_due(runs: list[JobRun], now: float, wait: float) -> None:
    job = ScheduledJob("daily", 86_400.0, Watched(ManualClock()).job.run)
    assert seconds_until_due(job, runs, now) == wait


# Who runs it.


async def test_a_process_that_is_not_the_owner_runs_only_what_runs_everywhere() -> None:
    schedule, clock = PlainSchedule(), ManualClock()
    one, each = (Process(schedule, clock, is_owner=False, everywhere=everywhere) for everywhere in (False, True))
    async with one.running(), each.running():
        for _ in range(3):
            await one.pass_time(PERIOD)
        assert (one.watched.at, len(each.watched.at)) == ([], 3)
        assert one.task is not None
        assert one.task.done()


class Contested(PlainSchedule):
    """A schedule whose lock another process has, and whose storage fails if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_led = True
        self.asked = 0
        self.fault: Exception | None = None

    async def lead(self, job: str) -> bool:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return not self.is_led

    async def note(self, run: JobRun) -> None:
        if self.fault is not None:
            raise self.fault
        await super().note(run)


@pytest.mark.parametrize("fault", [None, StorageBusy("locked")])
async def test_a_process_that_does_not_lead_asks_again_within_a_minute(fault: Exception | None) -> None:
    schedule = Contested()
    schedule.fault = fault
    process = Process(schedule)
    async with process.running():
        await process.pass_time(0)
        for asked in range(1, 5):
            assert (schedule.asked, process.watched.at) == (asked, [])
            await process.pass_time(LONGEST_STANDBY)
        schedule.is_led, schedule.fault = False, None
        await process.pass_time(LONGEST_STANDBY)
        await process.pass_time(0)
        assert len(process.watched.at) == 1
    said = [each["message"] for each in process.log if each["level"] == "warn"]
    assert said == ([] if fault is None else ["a job cannot be scheduled"] * 5)


# The record of a run.


async def ran(
    outcome: Mapping[str, Any] | BaseException | None, schedule: PlainSchedule | None = None
) -> tuple[list[JobRun], list[dict[str, Any]]]:
    """The rows after a first run with this outcome, and the log after a second one without an error."""
    process = Process(schedule, everywhere=True)
    process.watched.outcome = outcome
    async with process.running():
        await process.pass_time(0)
        rows = await process.schedule.runs()
        process.watched.outcome = None
        await process.pass_time(PERIOD)
        assert len(process.watched.at) == 2
    return rows, process.log


@pytest.mark.requirement("MC-HB-01")
async def test_a_run_leaves_a_row_and_a_log_entry() -> None:
    rows, (first, second) = await ran({"tidied": 3})
    start = ManualClock().now().timestamp()
    assert rows == [
        JobRun(
            job="watched",
            process="conn-1",
            started_at=start,
            duration_ms=0.0,
            outcome="completed",
            next_due_at=start + PERIOD,
            facts={"tidied": 3},
        )
    ]
    assert first == {
        "timestamp": ManualClock().timestamp(),
        "level": "info",
        "message": "job completed",
        "job": "watched",
        "durationMs": 0.0,
        "outcome": "completed",
        "facts": {"tidied": 3},
    }
    assert (second["message"], "facts" in second) == ("job completed", False)


@pytest.mark.parametrize(
    ("error", "level", "code"),
    [
        (OSError("no route"), "error", "INTERNAL"),
        (SystemExit(3), "error", "INTERNAL"),
        (asyncio.CancelledError(), "error", "INTERNAL"),
        (NotFound("gone"), "error", "NOT_FOUND"),
        (StorageFailed("no disk"), "warn", "INTERNAL"),
    ],
)
async def test_a_run_that_fails_is_recorded_and_the_next_takes_place(
    error: BaseException, level: str, code: str
) -> None:
    (run,), (entry, _) = await ran(error)
    assert (run.outcome, run.error, run.error_type, run.facts) == ("failed", code, type(error).__name__, {})
    assert (entry["level"], entry["message"], entry["outcome"]) == (level, "job failed", "failed")
    assert (entry["error"]["code"], type(error).__name__ in entry["error"]["message"]) == (code, True)


async def test_facts_that_json_does_not_have_fail_the_run() -> None:
    (run,), _ = await ran({"handle": object()})
    assert (run.outcome, run.error_type) == ("failed", "TypeError")


async def test_a_run_that_cannot_be_noted_does_not_end_the_schedule() -> None:
    schedule = Contested()
    schedule.fault = StorageFailed("no disk")
    _, log = await ran(None, schedule)
    assert [each["message"] for each in log] == ["job completed", "the run of a job cannot be noted"] * 2


async def test_a_job_stops_with_its_loop() -> None:
    process = Process()
    async with process.running():
        await process.pass_time(0)
    await process.pass_time(0)
    await process.pass_time(10 * PERIOD)
    assert process.watched.at == []


async def test_a_job_that_is_under_way_stops_with_its_loop() -> None:
    process, never = Process(), asyncio.Event()

    async def wait() -> None:
        process.watched.at.append(0.0)
        await never.wait()

    process.watched.job = ScheduledJob("endless", PERIOD, wait, everywhere=True)
    async with process.running():
        await process.pass_time(0)
        assert process.watched.at
        assert process.task is not None
        process.task.cancel()
        await settle()
        assert process.task.cancelled()


async def test_the_next_run_is_due_when_the_period_has_passed_since_the_end_of_one() -> None:
    process = Process()

    async def take_a_while() -> None:
        process.clock.advance(7)

    process.watched.job = ScheduledJob("long", PERIOD, take_a_while, everywhere=True)
    async with process.running():
        await process.pass_time(0)
    (run,) = await process.schedule.runs()
    assert (run.duration_ms, run.next_due_at - run.started_at) == (7_000.0, 7 + PERIOD)
