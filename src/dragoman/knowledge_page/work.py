"""The cost of a page, and the turns in which pages are made.

1. Few pages are made at a time, and the tenants share the places. A request that waits holds no text.
2. Nothing can stop a thread. One that works for a client that has left stops by itself, and holds its place until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

from dragoman.calls.places import AwaitedPlaces, Holder, Release
from dragoman.tools.context import Cancellation

T = TypeVar("T")

MOST_AT_ONCE: Final = 2
"""Pages that are made at a time. More would not be sooner: threads of Python take turns."""


class Work:
    """Steps that are left for a page. They are spent on a thread, and the page is given up on the event loop."""

    def __init__(self, steps: int, cancellation: Cancellation | None = None) -> None:
        self._left = steps
        self._cancellation = cancellation or Cancellation()

    def spend(self, steps: int = 1) -> bool:
        """Take some steps; False if there are not so many left, and nothing is taken then.

        Raises `Aborted` if nobody waits for the page any longer.
        """
        self._cancellation.raise_if_set()
        if steps > self._left:
            return False
        self._left -= steps
        return True


class RunOnThread(Protocol):
    """Runs a function on a thread, with so many steps to spend."""

    def __call__(self, steps: int, function: Callable[[Work], T], /) -> Awaitable[T]: ...


class Workshop:
    """The places where pages are made."""

    def __init__(self) -> None:
        self._places = AwaitedPlaces(MOST_AT_ONCE)

    @asynccontextmanager
    async def turn(self, holder: Holder) -> AsyncIterator[RunOnThread]:
        """Wait for a place, and have it until the block and what it runs have ended."""
        turn = _Turn(await self._places.acquire(holder))
        try:
            yield turn.run
        finally:
            turn.end()


class _Turn:
    def __init__(self, release: Release) -> None:
        self._release = release
        self._running: asyncio.Future[Any] | None = None

    async def run(self, steps: int, function: Callable[[Work], T], /) -> T:
        cancellation = Cancellation()
        running = asyncio.get_running_loop().run_in_executor(None, function, Work(steps, cancellation))
        self._running = running
        try:
            await asyncio.wait((running,))  # Which goes on if nobody waits any longer.
        except asyncio.CancelledError:
            cancellation.set("disconnect")
            raise
        return running.result()

    def end(self) -> None:
        if self._running is None or self._running.done():
            self._release()
        else:
            self._running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Future[Any]) -> None:
        running.exception()  # Looked at: nobody else does.
        self._release()
