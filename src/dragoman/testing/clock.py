"""Time that passes when it is told to."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

from dragoman.clock import iso_milliseconds


@dataclass(order=True)
class _Timer:
    due: float
    number: int
    callback: Callable[[], None] = field(compare=False)
    is_cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualClock:
    """A clock that stands still until `advance`, which fires what falls due on the way."""

    def __init__(self, start: datetime = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = 0.0
        self._timers: list[_Timer] = []
        self._numbers = count()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def timestamp(self) -> str:
        return iso_milliseconds(self.now())

    def monotonic(self) -> float:
        return self._elapsed

    def boot(self) -> float:
        return self._elapsed

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(self._elapsed + seconds, next(self._numbers), callback)
        heapq.heappush(self._timers, timer)
        return timer

    def jump(self, seconds: float) -> None:
        """Set the wall clock ahead, or back. No time passes."""
        self._start += timedelta(seconds=seconds)

    def skip(self, seconds: float) -> None:
        """Let time pass at once, as on a machine that sleeps: each timer that is due by then fires once, afterwards."""
        self._elapsed += seconds
        self.advance(0)

    def advance(self, seconds: float) -> None:
        """Let time pass, and fire each timer at its own moment. A timer of seconds takes a while for days: `skip`."""
        end = self._elapsed + seconds
        while self._timers and self._timers[0].due <= end:
            timer = heapq.heappop(self._timers)
            if not timer.is_cancelled:
                self._elapsed = max(self._elapsed, timer.due)
                timer.callback()
        self._elapsed = end
