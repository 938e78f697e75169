"""An event loop as other threads see it: whether it still turns, and how to have something done on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dragoman.clock import Clock


def on_running_loop(callback: Callable[[], None]) -> Callable[[], None]:
    """A function that has `callback` called on the loop that runs now, from any thread; nothing once that is closed."""
    loop = asyncio.get_running_loop()

    def call() -> None:
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            pass  # The loop is closed.

    return call


class LoopPulse:
    """Of the running loop. One that a handler blocks is given `most_blocked` seconds."""

    def __init__(self, clock: Clock, most_blocked: float) -> None:
        self._clock = clock
        self._most_blocked = most_blocked
        self._loop = asyncio.get_running_loop()
        self._asked_at: float | None = None
        """When the loop was asked, if it has not answered since."""

    def is_alive(self) -> bool:
        """Ask the loop, and say how it stood with the last time. From another thread."""
        asked_at = self._asked_at
        if asked_at is not None:
            return self._clock.monotonic() - asked_at < self._most_blocked
        self._asked_at = self._clock.monotonic()
        try:
            self._loop.call_soon_threadsafe(self._answer)
        except RuntimeError:
            return False  # The loop is closed.
        return True

    def _answer(self) -> None:
        self._asked_at = None
