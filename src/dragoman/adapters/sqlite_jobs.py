"""Functions that run on a thread with a database connection, and are awaited on any event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from dragoman.calls.threads import settle

C = TypeVar("C")
T = TypeVar("T")


class Together(Protocol):
    """Work that costs less for many items at once than for each alone."""

    def one(self, item: Any, connection: Any, /) -> Any:
        """Do the work for one item."""
        ...

    def all(self, items: Sequence[Any], connection: Any, /) -> Sequence[Any] | None:
        """Do the work for all items, in order; None if they have to be done one by one, as one of them fails."""
        ...


class Job(Generic[C, T]):
    """A function, and who waits for what it returns. Made on the event loop of whoever waits."""

    __slots__ = ("_loop", "_value", "awaited", "error", "function", "item", "together", "weight")

    def __init__(
        self, function: Callable[[C], T], together: Together | None = None, item: Any = None, weight: int = 1
    ) -> None:
        self.function = function
        self.weight = weight
        self.together = together
        self.item = item
        self.error: BaseException | None = None
        self._value: Any = None
        self._loop = asyncio.get_running_loop()
        self.awaited: asyncio.Future[T] = self._loop.create_future()

    @staticmethod
    def one_of(together: Together, item: Any) -> Job[Any, Any]:
        """A job that may be done with others of its kind."""
        return Job(partial(together.one, item), together, item)

    def done(self, value: T) -> None:
        """On the thread: what was done together with others has succeeded."""
        self._value = value

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
        del self.awaited, self._value, self.error, self.item
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
