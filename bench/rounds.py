"""Turns: whatever is compared is done round after round, and never twice in the same order."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Figures: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What one run took: seconds on the clock, seconds of the server's processor time, seconds of each call."""

    calls: int
    seconds: float
    cpu: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        return self.calls / self.seconds

    @property
    def cpu_per_call(self) -> float:
        return self.cpu / self.calls


Rounds: TypeAlias = Mapping[str, Sequence[Run]]


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """Whoever comes first in one round comes last in the next, as what ran before may tell."""
    first = turn % len(items)
    return [*items[first:], *items[:first]]


def rate_of(run: Run) -> float:
    return run.rate


def cpu_of(run: Run) -> float:
    return max(run.cpu, 0.01) / run.calls  # The kernel counts in hundredths.


def p50_of(run: Run) -> float:
    return statistics.median(run.latencies)


def figures_of(runs: Sequence[Run]) -> Figures:
    """All the rounds of one server."""
    rates = [run.rate for run in runs]
    figures = {
        "best": max(rates),
        "median": statistics.median(rates),
        "rounds": rates,
        "cpu_us": sum(run.cpu for run in runs) / sum(run.calls for run in runs) * 1e6,
    }
    latencies = [latency for run in runs for latency in run.latencies]
    if latencies:
        cuts = statistics.quantiles(latencies, n=100)
        figures |= {f"p{cut}_us": cuts[cut - 1] * 1e6 for cut in (50, 95, 99)}
    return figures


def ratios_of(rounds: Rounds, mine: str, of: Callable[[Run], float]) -> dict[str, float]:
    """One server's figure as a multiple of each other's, round by round."""
    return {
        name: statistics.median(of(a) / of(b) for a, b in zip(rounds[mine], theirs, strict=True))
        for name, theirs in rounds.items()
        if name != mine
    }
