"""The metrics of tasks and of idempotency keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.clock import sleep
from dragoman.errors import ErrorCode, StorageError
from dragoman.tasks.keeping import Keeping
from dragoman.tasks.running import TaskRuns
from dragoman.tasks.store import RunStore
from dragoman.telemetry.figures import Gauge
from dragoman.telemetry.log import Logger, exception_facts

_EVERY = 5.0


class TaskFigures:
    """The store is read by a loop, and not whenever somebody asks for the metrics.

    Tasks by status are those of all processes, so only the process that is the owner shows them.
    """

    def __init__(self, store: RunStore, tasks: TaskRuns, keeping: Keeping, logger: Logger, *, is_owner: bool) -> None:
        self._store = store
        self._tasks = tasks
        self._keeping = keeping
        self._logger = logger
        self._is_owner = is_owner
        self._found: Mapping[str, Any] = {"byStatus": {}, "oldest": None}

    async def keep_reading(self) -> None:
        """Read how many tasks there are."""
        while True:
            await sleep(self._store.clock, _EVERY)
            if not self._store.is_open or not self._is_owner:
                continue
            try:
                self._found = await self._store.runs.count()
            except StorageError as error:
                self._logger.warn("tasks cannot be counted", exception_facts(error, ErrorCode.INTERNAL))

    def gauges(self) -> tuple[Gauge, ...]:
        tasks, keeping = self._tasks, self._keeping
        counters = (
            (
                "dragoman_task_runs_repeated",
                "Tasks that were begun again after an interruption.",
                lambda: tasks.repeated,
            ),
            ("dragoman_keys_joined", "Calls that waited for the first one with their key.", lambda: keeping.joined),
            ("dragoman_keys_replayed", "Calls that got the outcome of an earlier one.", lambda: keeping.replayed),
        )
        return (
            Gauge("dragoman_tasks", "Tasks that are kept, by status.", self._by_status, label="status"),
            Gauge("dragoman_tasks_running", "Tasks that run in this process.", lambda: len(tasks.running)),
            Gauge("dragoman_task_oldest_seconds", "Age of the oldest task that has not ended.", self._age),
            *(Gauge(name, about, read, is_counter=True) for name, about, read in counters),
        )

    def _by_status(self) -> dict[str, float]:
        return dict(self._found["byStatus"])

    def _age(self) -> float:
        oldest = self._found["oldest"]
        return 0.0 if oldest is None else max(0.0, self._store.now() - oldest)
