"""Tasks and idempotency keys as a part of a server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from dragoman.agents.ledger import LedgerAdmin
from dragoman.agents.migrations import MIGRATIONS
from dragoman.calls.settings import LimitsConfig, ResourcesConfig
from dragoman.parts.part import Contribution, Facilities, Loop, Part
from dragoman.storage.port import PurgeClock, Storage
from dragoman.tasks.feed import TaskFeed
from dragoman.tasks.figures import TaskFigures
from dragoman.tasks.keeping import Keeping
from dragoman.tasks.port import Runs
from dragoman.tasks.requests import TaskRequests
from dragoman.tasks.running import TaskRuns
from dragoman.tasks.settings import TasksConfig
from dragoman.tasks.store import RunStore
from dragoman.tasks.upkeep import TaskUpkeep

PART = "tasks"


class TasksAtWork:
    """The objects of the part that the rest of a server uses, once it is built."""

    requests: TaskRequests
    """Finds, answers and cancels tasks of a caller."""
    feed: TaskFeed
    """Tells about changes of tasks."""


def tasks_part(
    at_work: TasksAtWork,
    resources: ResourcesConfig,
    limits: LimitsConfig,
    *,
    lease_ms: int,
    retry_seconds: float,
    max_payload_bytes: int,
    server_info: Mapping[str, Any],
    is_owner: bool,
    runs_tasks: bool,
    runs: tuple[Runs, LedgerAdmin] | None,
    has_past: bool,
) -> Part:
    """The part; `at_work` is filled in when it is built. Without `runs`, the storage's own are used.

    What has expired is kept for `retry_seconds` longer, which the messages of agents in the same ledger need.
    With `has_past`, a server before this one may have left runs.
    """

    def build(given: Facilities) -> Contribution:
        config: TasksConfig = given.settings
        ports = partial(_ports, runs, given.storage)
        store = RunStore(ports, given.clock, given.ids, given.logger, given.publish, lease_ms / 1000)
        shown = given.catalogue, given.logger, server_info
        tasks = TaskRuns(store, config, resources, limits, *shown, runs_tasks=runs_tasks)
        keeping = Keeping(store, tasks, given.get_intake, given.max_value_bytes, config.idempotency_ttl_ms)
        at_work.requests = TaskRequests(store, tasks, max_payload_bytes)
        at_work.feed = TaskFeed(at_work.requests, store, given.logger)
        purge_clock = partial(given.storage.port, PurgeClock)
        upkeep = TaskUpkeep(store, tasks, at_work.feed, given.logger, retry_seconds, purge_clock)
        figures = TaskFigures(store, tasks, keeping, given.logger, is_owner=is_owner)

        async def start() -> None:
            tasks.start(*given.open_pipeline(config.max_concurrent, "task run completed"))
            if has_past and given.catalogue.has_tasks:
                await upkeep.sweep()  # What was left by a server before; this opens the storage.

        async def stop() -> None:
            store.is_stopping = True
            await tasks.stop()
            await store.close()

        return Contribution(
            repeats=keeping,
            start=start,
            drain=tasks.drain,
            stop=stop,
            on_change=upkeep.on_change,
            loops=(
                Loop("follow", upkeep.follow),
                Loop("tell", upkeep.keep_telling),
                Loop("sweep", upkeep.keep_sweeping),
                Loop("purge", upkeep.keep_purging),
                Loop("figures", figures.keep_reading),
            ),
            gauges=figures.gauges(),
        )

    return Part(name=PART, settings=TasksConfig, migrations=MIGRATIONS, build=build)


def _ports(runs: tuple[Runs, LedgerAdmin] | None, storage: Storage) -> tuple[Runs, LedgerAdmin]:
    return runs or (storage.port(Runs), storage.port(LedgerAdmin))
