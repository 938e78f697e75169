"""Changes of tasks, for clients that listen for them instead of asking again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dragoman.access.callers import Caller
from dragoman.errors import ErrorCode, InvalidParams, StorageError
from dragoman.tasks.requests import TaskRequests
from dragoman.tasks.running import status_of
from dragoman.tasks.store import RunStore
from dragoman.telemetry.log import Logger, exception_facts

MOST_TASKS = 1024
"""Tasks that one stream may be told about."""


class _Listener(Struct, eq=False):
    caller: Caller
    tell: Callable[[Mapping[str, Any]], None]
    seen: dict[str, tuple[str, float]]
    """By task id, the status and the time that the client was last told, or found when it began to listen."""
    look_seldom: Callable[[], None] = lambda: None
    """Ends that its tasks are looked at often."""

    def forget(self, task_id: str) -> None:
        """The task does not change any more."""
        del self.seen[task_id]
        if not self.seen:
            self.look_seldom()


class TaskFeed:
    """Tells listeners what `tasks/get` would say, whenever that has changed. Lives on the event loop."""

    def __init__(self, requests: TaskRequests, store: RunStore, logger: Logger) -> None:
        self._requests = requests
        self._store = store
        self._logger = logger
        self._listeners: set[_Listener] = set()
        self._looking = asyncio.Lock()

    async def listen(
        self, caller: Caller, task_ids: Sequence[str], tell: Callable[[Mapping[str, Any]], None]
    ) -> tuple[list[str], Callable[[], None]]:
        """Begin to listen; returns the ids that are the caller's own, and a function that ends it."""
        listener, found = _Listener(caller, tell, {}), list[str]()
        for task_id in dict.fromkeys(task_ids[:MOST_TASKS]):
            try:
                run = await self._requests.find(caller, task_id)
            except InvalidParams:
                continue
            found.append(task_id)
            if run.is_open:  # What has ended does not change.
                listener.seen[task_id] = (status_of(run), run.updated_at)
        if listener.seen:
            listener.look_seldom = self._store.runs.look_often()
        self._listeners.add(listener)
        self._store.wake()  # For what has changed since it was read.

        def end() -> None:
            self._listeners.discard(listener)
            listener.look_seldom()

        return found, end

    async def look(self) -> None:
        """Tell every listener what has changed since it was last told."""
        async with self._looking:  # Side by side, two of them could tell things twice, or the older last.
            for listener in tuple(self._listeners):
                await self._look_for(listener)

    async def _look_for(self, listener: _Listener) -> None:
        for task_id, seen in tuple(listener.seen.items()):
            if listener not in self._listeners:
                return
            try:
                await self._look_at(listener, task_id, seen)
            except InvalidParams:
                listener.forget(task_id)  # It has expired.
            except StorageError as error:
                self._logger.warn("a task cannot be read", exception_facts(error, ErrorCode.INTERNAL))

    async def _look_at(self, listener: _Listener, task_id: str, seen: tuple[str, float]) -> None:
        run = await self._requests.find(listener.caller, task_id)
        details = self._requests.details_of(run)
        if (details["status"], run.updated_at) != seen:
            listener.seen[task_id] = (details["status"], run.updated_at)
            listener.tell(details)
            if not run.is_open:
                listener.forget(task_id)
