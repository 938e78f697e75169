"""Where time comes from, so that a test can say what time it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from datetime import UTC, datetime
from time import time_ns
from typing import Protocol


class Timer(Protocol):
    """A callback that has been asked for and can be called off."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """What time it is, how long something took, and being woken later."""

    def now(self) -> datetime:
        """The wall clock, in UTC."""
        ...

    def timestamp(self) -> str:
        """The wall clock as ISO 8601 with milliseconds: `2024-01-15T10:30:00.000Z`."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards, for durations."""
        ...

    def boot(self) -> float:
        """Seconds since the machine started, the same in all its processes."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call back once on the running event loop."""
        ...


async def sleep(clock: Clock, seconds: float) -> None:
    """Return after so many seconds of `clock`."""
    due = asyncio.Event()
    timer = clock.call_later(seconds, due.set)
    try:
        await due.wait()
    finally:
        timer.cancel()


def until_next(now: float, every: float) -> float:
    """Seconds until a multiple of `every` on a clock: the next one, or the one behind it if that is about to come.

    Whatever waits for it wakes up in the same moment, in all processes, and a machine that is idle sleeps in between.
    """
    return (round(now / every) + 1) * every - now


def iso_milliseconds(moment: datetime) -> str:
    """A UTC moment the way logs and envelopes write it."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def boot_clock() -> float:
    """Seconds since the machine started, sleep included. Nobody can set it, and all processes see the same."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class SystemClock:
    """The machine's own time."""

    def __init__(self) -> None:
        self._timestamp = ""
        self._from = self._until = 0  # The nanoseconds that it is the right one for.

    monotonic = staticmethod(time.perf_counter)
    boot = staticmethod(boot_clock)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def timestamp(self) -> str:
        # Many log lines fall into one millisecond, and formatting a date costs more than the rest of the line.
        now = time_ns()
        if not self._from <= now < self._until:
            second, rest = divmod(now // 1_000_000, 1000)
            self._timestamp = time.strftime(f"%Y-%m-%dT%H:%M:%S.{rest:03d}Z", time.gmtime(second))
            self._from = now - now % 1_000_000
            self._until = self._from + 1_000_000
        return self._timestamp

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        # In a context of its own: a timer keeps its context until it is due, and a call's leads to its client.
        return asyncio.get_running_loop().call_later(seconds, callback, context=Context())
