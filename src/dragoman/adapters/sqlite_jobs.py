"""Functions that run on a thread with a database connection, and are awaited on any event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from dragoman.calls.threads import settle

C = TypeVar("C")
T = TypeVar("T")


class Job(Generic[C, T]):
    """A function, and who waits for what it returns. Made on the event loop of whoever waits."""

    __slots__ = ("_loop", "_value", "awaited", "error", "function")

    def __init__(self, function: Callable[[C], T]) -> None:
        self.function = function
        self.error: BaseException | None = None
        self._value: Any = None
        self._loop = asyncio.get_running_loop()
        self.awaited: asyncio.Future[T] = self._loop.create_future()

    def run(self, connection: C) -> None:
        """On the thread. What the function raises is kept for whoever waits."""
        try:
            self._value = self.function(connection)
        except BaseException as error:
            self.error = error

    def settle(self) -> None:
        """On the event loop: give the result to whoever waits, once."""
        awaited, value, error = self.awaited, self._value, self.error
        # The frames that an exception passed through lead here: see `_Job` in `threads.py`.
        del self.awaited, self._value, self.error
        settle(awaited, value, error)

    @staticmethod
    def deliver(jobs: Iterable[Job[Any, Any]]) -> None:
        """On the thread: wake every event loop that waits, each of them once."""
        waiting: dict[asyncio.AbstractEventLoop, list[Job[Any, Any]]] = {}
        for job in jobs:
            waiting.setdefault(job._loop, []).append(job)
        for loop, theirs in waiting.items():
            try:
                loop.call_soon_threadsafe(_settle, theirs)
            except RuntimeError:
                pass  # The loop is closed: nobody is left to tell.


def _settle(jobs: list[Job[Any, Any]]) -> None:
    for job in jobs:
        job.settle()


class Farewell(Job[Any, None]):
    """The last job of a thread: it closes its connection and ends."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(lambda connection: None)
