"""The objectives of the action contract, and whether they hold.

1. A request for which there is no figure breaks no objective: where nothing was asked for, all of them hold.
2. The error rate is the contract's: every request whose status is not SUCCESS, whoever's fault that was. Availability
   leaves out what was refused because of what was asked.
3. Percentiles are read off buckets. The bounds of the objectives are bounds of buckets, so these are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import accumulate
from math import inf
from typing import Final

from msgspec import Struct

from dragoman.slo.meter import (
    ABORTED,
    ACK,
    BOUNDS_MS,
    DEAD,
    DONE,
    EXTERNAL,
    FAILED,
    INTERNAL,
    LATENCY,
    REFUSED,
    RETRIES,
    STATUS,
    SUCCESS,
)
from dragoman.slo.port import DAY, LevelKey, ServiceLevels
from dragoman.telemetry.quantiles import quantile

ERROR_BUDGET: Final = 0.01
MOST_DEAD: Final = 0.001
ACK_MS: Final = {INTERNAL: 1_000.0, EXTERNAL: 2_000.0}
DONE_AFTER_ETA_MS: Final = 60_000.0
_SHARE: Final = 0.95
DAY_WINDOW, WEEK_WINDOW, QUARTER_WINDOW = "day", "week", "quarter"


class Window(Struct, frozen=True, rename="camel"):
    """What requests of a time add up to."""

    name: str
    since: float
    """In seconds since 1970; until now."""
    requests: int
    succeeded: int
    refused: int
    failed: int
    aborted: int
    unauthenticated: int
    """Those of all whose senders are not known."""
    dead_letters: int
    retries: int
    availability: float | None
    """The share of requests that did not fail because of the server; None without requests, as are the next four."""
    error_rate: float | None
    budget_used: float | None
    """Of the error budget: 1 is all of it."""
    dead_letter_rate: float | None
    latency_p95_ms: float | None


class Objective(Struct, frozen=True, rename="camel"):
    """A promise, and how it stands."""

    name: str
    window: str
    unit: str
    """`share` or `ms`."""
    target: float
    """The most that `value` may be."""
    value: float | None
    """None if nothing was asked for."""

    @property
    def holds(self) -> bool:
        return self.value is None or self.value <= self.target


class Report(Struct, frozen=True):
    """How all objectives stand."""

    at: float
    windows: list[Window]
    objectives: list[Objective]

    @property
    def holds(self) -> bool:
        return all(each.holds for each in self.objectives)


async def read_report(
    levels: ServiceLevels, now: float, eta_ms: Callable[[str], float], tenant: str | None = None
) -> Report:
    """The objectives at a moment, of all tenants or of one. `eta_ms` tells how long an action may take by itself."""
    counts: dict[str, Mapping[LevelKey, int]] = {}
    windows = []
    for name, since in _starts(now).items():
        read = await levels.read(since)
        counts[name] = {key: count for key, count in read.items() if tenant in (None, key.tenant)}
        windows.append(_window(name, since * 60.0, counts[name]))
    return Report(now, windows, [*_objectives(windows, counts[WEEK_WINDOW], eta_ms)])


def _starts(now: float) -> dict[str, int]:
    """The first minute of each window; the quarter is that of the calendar, in UTC."""
    minute, today = int(now // 60), datetime.fromtimestamp(now, UTC)
    quarter = datetime(today.year, (today.month - 1) // 3 * 3 + 1, 1, tzinfo=UTC)
    return {
        DAY_WINDOW: minute - DAY,
        WEEK_WINDOW: minute - 7 * DAY,
        QUARTER_WINDOW: int(quarter.timestamp() // 60),
    }


def _window(name: str, since: float, counts: Mapping[LevelKey, int]) -> Window:
    totals: dict[str, int] = {}
    for key, count in counts.items():
        totals[key.figure] = totals.get(key.figure, 0) + count
    requests = sum(totals.get(status, 0) for status in STATUS)
    error_rate = _rate(requests - totals.get(SUCCESS, 0), requests)
    return Window(
        name=name,
        since=since,
        requests=requests,
        succeeded=totals.get(SUCCESS, 0),
        refused=totals.get(REFUSED, 0),
        failed=totals.get(FAILED, 0),
        aborted=totals.get(ABORTED, 0),
        unauthenticated=sum(count for key, count in counts.items() if key.figure in STATUS and not key.caller),
        dead_letters=totals.get(DEAD, 0),
        retries=totals.get(RETRIES, 0),
        availability=_rate(requests - totals.get(FAILED, 0), requests),
        error_rate=error_rate,
        budget_used=None if error_rate is None else error_rate / ERROR_BUDGET,
        dead_letter_rate=_rate(totals.get(DEAD, 0), requests),
        latency_p95_ms=_p95(counts, LATENCY),
    )


def _objectives(
    windows: list[Window], week: Mapping[LevelKey, int], eta_ms: Callable[[str], float]
) -> Iterator[Objective]:
    for window in windows:
        if window.name == DAY_WINDOW:
            yield Objective("dead letters", window.name, "share", MOST_DEAD, window.dead_letter_rate)
        else:
            yield Objective("error budget", window.name, "share", ERROR_BUDGET, window.error_rate)
    for caller, most in ACK_MS.items():
        value = _p95({key: count for key, count in week.items() if key.caller == caller}, ACK)
        yield Objective(f"ACK P95, {caller}", WEEK_WINDOW, "ms", most, value)
    for action in sorted({key.action for key in week if key.figure == DONE}):
        value = _p95({key: count for key, count in week.items() if key.action == action}, DONE)
        most = eta_ms(action) + DONE_AFTER_ETA_MS
        yield Objective(f"job done P95, {action or 'unreadable'}", WEEK_WINDOW, "ms", most, value)


def _rate(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _p95(counts: Mapping[LevelKey, int], figure: str) -> float | None:
    buckets = [0] * (len(BOUNDS_MS) + 1)
    for key, count in counts.items():
        if key.figure == figure:
            buckets[min(key.bucket, len(BOUNDS_MS))] += count
    return quantile(_SHARE, zip((*BOUNDS_MS, inf), accumulate(buckets), strict=True))
