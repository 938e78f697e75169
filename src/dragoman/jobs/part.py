"""The heartbeat and the upkeep of the registry as a part of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dragoman.jobs.heartbeat import EVERY_SECONDS, FORGET_EVERY_SECONDS, Heartbeat
from dragoman.jobs.migrations import PART
from dragoman.jobs.scheduler import Scheduler
from dragoman.parts.part import Contribution, Facilities, Part, ScheduledJob


def jobs_part(scheduler: Scheduler, agents: Callable[[], Iterable[tuple[str, bool]]], *, space: str) -> Part:
    """`agents` gives the agents that this process holds, and whether each of them works."""

    def build(given: Facilities) -> Contribution:
        stores = scheduler.stores
        clocks = given.clock, stores.purge_clock
        heartbeat = Heartbeat(stores.registry, lambda: scheduler.process, given.health, agents, *clocks, space)
        return Contribution(
            loops=(
                given.scheduled(ScheduledJob("heartbeat", EVERY_SECONDS, heartbeat.beat, everywhere=True)),
                given.scheduled(ScheduledJob("registry.forget", FORGET_EVERY_SECONDS, heartbeat.forget)),
            ),
            stop=heartbeat.leave,
        )

    return Part(name=PART, build=build)
