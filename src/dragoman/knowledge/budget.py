"""The time that one piece of work may take, in all of its steps together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from dragoman.clock import Clock
from dragoman.tools.context import Cancellation

T = TypeVar("T")


class Budget:
    """Begins when it is made."""

    def __init__(self, clock: Clock, seconds: float, cancellation: Cancellation) -> None:
        self._clock = clock
        self._until = clock.monotonic() + seconds
        self._cancellation = cancellation

    async def within(self, step: Coroutine[Any, Any, T]) -> T:
        """What a step returns. Raises `TimeoutError` when the time is up, and `Aborted` when nobody waits for it.

        The step is cancelled then.
        """
        over = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(max(0.0, self._until - self._clock.monotonic()), lambda: _set(over))
        working, cancelled = asyncio.ensure_future(step), asyncio.ensure_future(self._cancellation.wait())
        working.add_done_callback(_look_at)
        try:
            await asyncio.wait((working, over, cancelled), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            self._cancellation.raise_if_set()
            raise TimeoutError
        finally:
            timer.cancel()
            working.cancel()
            cancelled.cancel()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _look_at(work: asyncio.Future[Any]) -> None:
    """Otherwise asyncio complains of an error in what was given up."""
    if not work.cancelled():
        work.exception()
