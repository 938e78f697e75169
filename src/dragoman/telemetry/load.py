"""How busy the process is: its memory, and how late its event loop runs."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Collection
from typing import Any, Final, Literal, TypeAlias

from dragoman.clock import Clock, Timer, until_next

_INTERVAL = 0.05
_IDLE_INTERVAL = 1.0
_WINDOW = 10.0
_LOOK_EVERY = 1.0


def process_memory() -> int:
    """Resident memory of this process, in bytes."""
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    else:
        import psutil

        return int(psutil.Process().memory_info().rss)


class LagMonitor:
    """How late timers fire on the event loop: p99 of the samples in a window that starts anew every ten seconds.

    A timer is due every 50 ms while calls run and for a second after that, and every second otherwise, so that an idle
    process sleeps. One that was due after a second counts as the twenty that it stands for.
    """

    def __init__(self, clock: Clock) -> None:
        self.under_way: Collection[Any] = ()
        """The calls that run."""
        self.is_idle = False
        """Whether its timer is due seldom, and `wake` is to be called when a call begins."""
        self._clock = clock
        self._timer: Timer | None = None
        self._samples: list[float] = []
        self._window_started = 0.0
        self._looked = 0.0
        self._due = 0.0
        self._busy_until = 0.0

    def start(self) -> None:
        now = self._clock.monotonic()
        self._window_started, self._busy_until = now, now + _IDLE_INTERVAL
        self._schedule(now)

    def stop(self) -> None:
        self.is_idle = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake(self) -> None:
        """Look often again. On the event loop."""
        self._busy_until = self._clock.monotonic() + _IDLE_INTERVAL
        if self.is_idle and self._timer is not None:
            self._timer.cancel()
            self._sample()

    def p99_ms(self) -> float:
        """Milliseconds; the delay of a timer that is overdue this very moment counts too."""
        samples = list(self._samples)
        if self._timer is not None:
            samples.append(max(0.0, self._clock.monotonic() - self._due))
        if not samples:
            return 0.0
        samples.sort()
        return round(samples[math.ceil(0.99 * len(samples)) - 1] * 1000, 3)

    def _schedule(self, now: float) -> None:
        self.is_idle = not self.under_way and now >= self._busy_until
        seconds = until_next(now, _IDLE_INTERVAL) if self.is_idle else _INTERVAL
        self._looked, self._due = now, now + seconds
        self._timer = self._clock.call_later(seconds, self._sample)

    def _sample(self) -> None:
        now = self._clock.monotonic()
        if now - self._window_started >= _WINDOW:
            self._samples.clear()
            self._window_started = now
        # The samples that a blocked loop did not take would have been late too, each by an interval less.
        late = max(0.0, now - self._due)
        while True:
            self._samples.append(late)
            late -= _INTERVAL
            if late <= 0 or len(self._samples) > _WINDOW / _INTERVAL:
                break
        # Those that an idle loop was not asked for would have been on time, as far as anybody knows.
        self._samples += [0.0] * (round((min(now, self._due) - self._looked) / _INTERVAL) - 1)
        self._schedule(now)


PressureLevel: TypeAlias = Literal["low", "medium", "high", "critical"]
PRESSURE_LEVELS: Final[tuple[tuple[float, PressureLevel], ...]] = (
    (0.95, "critical"),
    (0.85, "high"),
    (0.7, "medium"),
    (0.0, "low"),
)
"""From which part of its budget on the process's memory is under what pressure."""


def memory_budget() -> int:
    """What this process could use at most: its container's limit, else the machine's memory; 0 when nobody knows."""
    machine = _machine_memory()
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(file, encoding="ascii") as said:
                return min(int(said.read()), machine or sys.maxsize)
        except (OSError, ValueError):
            continue  # No such file, or no limit in it.
    return machine


def _machine_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        import psutil

        return int(psutil.virtual_memory().total)


class PressureMonitor:
    """How much of its memory budget the process uses, looked at once a second."""

    def __init__(self, clock: Clock, budget: int | None = None, measure: Callable[[], int] = process_memory) -> None:
        self.level: PressureLevel = "low"
        self.is_calm = True
        """Whether the level is one that no gate minds."""
        self._clock = clock
        self._budget = budget or memory_budget()
        self._measure = measure
        self._timer: Timer | None = None

    def start(self) -> None:
        self._look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = self._clock.call_later(until_next(self._clock.monotonic(), _LOOK_EVERY), self._look)
        try:
            part = self._measure() / self._budget if self._budget else 0.0
        except OSError:
            return  # No descriptor to look with: what was known stays, and the next look may do better.
        self.level = next(level for least, level in PRESSURE_LEVELS if part >= least)
        self.is_calm = self.level in ("low", "medium")
