"""Runs jobs: when each is due, which process runs it, and the record of each run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import cached_property, partial

import msgspec

from dragoman.calls.interrupts import raise_if_stopped
from dragoman.clock import Clock, sleep
from dragoman.errors import ErrorCode, StorageError, ToolError
from dragoman.ids import Ids
from dragoman.jobs.port import JobRun, JobStores
from dragoman.messaging.retries import Random
from dragoman.parts.part import Loop, ScheduledJob
from dragoman.telemetry.log import Logger, exception_facts

JITTER = 0.1
"""The most of a wait that jitter takes away: a job is never late because of it."""
LONGEST_FIRST_WAIT = 2.0
"""Seconds after the start within which a job that is due runs."""
LONGEST_STANDBY = 60.0
"""Seconds within which a process notices that nobody has the lock of a job any more."""

_FAILURES = (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError)


class Scheduler:
    """Makes the loops of jobs. The stores are opened for the first of them."""

    def __init__(
        self,
        open_stores: Callable[[], JobStores],
        clock: Clock,
        logger: Logger,
        ids: Ids,
        random: Random,
        *,
        is_owner: bool,
    ) -> None:
        self._open_stores = open_stores
        self._clock = clock
        self._logger = logger
        self._ids = ids
        self._random = random
        self._is_owner = is_owner

    @cached_property
    def stores(self) -> JobStores:
        """Raises `ConfigError` for settings that leave the storage no place."""
        return self._open_stores()

    @cached_property
    def process(self) -> str:
        """The name of this process among all that use the stores."""
        return self._ids.connection_correlation_id()

    def loop(self, job: ScheduledJob) -> Loop:
        """The loop that runs a job when it is due."""
        assert self.stores
        return Loop(job.name, partial(self._keep_running, job))

    async def _keep_running(self, job: ScheduledJob) -> None:
        if not (job.everywhere or self._is_owner):
            return
        await sleep(self._clock, min(LONGEST_FIRST_WAIT, JITTER * job.every_seconds) * self._random())
        if not job.everywhere:
            await sleep(self._clock, await self._wait_for_lead(job))
        while True:
            await sleep(self._clock, await self._run(job))

    async def _wait_for_lead(self, job: ScheduledJob) -> float:
        """Return when this process leads; the seconds until the job is due."""
        while True:
            try:
                if await self.stores.schedule.lead(job.name):
                    return seconds_until_due(job, await self.stores.schedule.runs(), self._now())
            except StorageError as error:
                facts = {"job": job.name, **exception_facts(error, ErrorCode.INTERNAL)}
                self._logger.warn("a job cannot be scheduled", facts)
            await sleep(self._clock, self._jittered(min(job.every_seconds, LONGEST_STANDBY)))

    async def _run(self, job: ScheduledJob) -> float:
        """Run a job once, and keep the record of it; the seconds until the next run."""
        error: BaseException | None = None
        facts = {}
        started_at, began = self._now(), self._clock.monotonic()
        try:
            facts = dict(await job.run() or {})
            msgspec.json.encode(facts)
        except _FAILURES as raised:
            raise_if_stopped(raised)
            error, facts = raised, {}
        duration = self._clock.monotonic() - began
        wait = self._jittered(job.every_seconds)
        run = JobRun(
            job=job.name,
            process=self.process,
            started_at=started_at,
            duration_ms=round(duration * 1000, 3),
            outcome="completed" if error is None else "failed",
            error=None if error is None else _code_of(error),
            error_type=None if error is None else type(error).__qualname__,
            facts=facts,
            next_due_at=started_at + duration + wait,
        )
        self._log(run, error)
        try:
            await self.stores.schedule.note(run)
        except StorageError as refused:
            told = {"job": job.name, **exception_facts(refused, ErrorCode.INTERNAL)}
            self._logger.warn("the run of a job cannot be noted", told)
        return wait

    def _log(self, run: JobRun, error: BaseException | None) -> None:
        facts = {"job": run.job, "durationMs": run.duration_ms, "outcome": run.outcome}
        if error is None:
            self._logger.info("job completed", {**facts, "facts": run.facts} if run.facts else facts)
            return
        log = self._logger.warn if isinstance(error, StorageError) else self._logger.error
        log("job failed", {**facts, **exception_facts(error, _code_of(error))})

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def _jittered(self, seconds: float) -> float:
        return seconds * (1 - JITTER * self._random())


def seconds_until_due(job: ScheduledJob, runs: Iterable[JobRun], now: float) -> float:
    """How long to wait for the next run, by the last one of any process.

    A run in the future counts as none, because the clock was set back since. A period that is shorter now counts.
    """
    last = max(
        (run for run in runs if run.job == job.name and run.started_at <= now),
        key=lambda run: run.started_at,
        default=None,
    )
    if last is None:
        return 0.0
    due_at = min(last.next_due_at, last.started_at + last.duration_ms / 1000 + job.every_seconds)
    return max(0.0, due_at - now)


def _code_of(error: BaseException) -> str:
    return str(error.code if isinstance(error, ToolError) else ErrorCode.INTERNAL)
