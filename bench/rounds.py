"""Turns: whatever is compared is done round after round, and never twice in the same order.

1. A round is short, and there are many: what a machine does to one of them, the median does not see.
2. A ratio is the median of the ratios within each round: two runs that follow each other at once saw the same machine,
   and two that are a minute apart may not have.
3. Around a median are its quartiles: half of the rounds lie between them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Figures: TypeAlias = dict[str, Any]

ENOUGH_ROUNDS = 15
"""With fewer, the quartiles of two servers that differ may still overlap."""
_LEAST_CPU = 1e-6  # Where the kernel counts in hundredths, a short run may have taken none.


@dataclass(frozen=True)
class Plan:
    """How long everything may take."""

    rounds: int
    seconds: float
    """Of one run of one server."""
    start_ups: int
    growth_calls: int
    is_short: bool
    folder: Path
    say: Callable[[str], None]


def plan_for(*, short: bool, rounds: int | None = None) -> Plan:
    """The plan of a full run or of a short one; where files go and what is said is the caller's."""
    return Plan(
        rounds=rounds or (2 if short else ENOUGH_ROUNDS),
        seconds=0.2 if short else 0.3,
        start_ups=2 if short else 5,
        growth_calls=50_000 if short else 1_000_000,
        is_short=short,
        folder=Path(),
        say=lambda _: None,
    )


@dataclass(frozen=True)
class Run:
    """What one run took: seconds on the clock, seconds of the server's processor time, seconds of each call, and
    seconds of the processor's time that the client took to make the calls."""

    calls: int
    seconds: float
    cpu: float
    latencies: list[float]
    client_cpu: float = 0.0

    @property
    def rate(self) -> float:
        return self.calls / self.seconds

    @property
    def cpu_per_call(self) -> float:
        return max(self.cpu, _LEAST_CPU) / self.calls


@dataclass(frozen=True)
class Way:
    """One of those that are compared: its name, and what makes one run. It takes part in every `every`th round."""

    name: str
    run: Callable[[], Run]
    every: int = 1


Rounds: TypeAlias = Mapping[str, Mapping[int, Run]]
"""Runs by name and by the number of the round."""


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """Whoever comes first in one round comes last in the next, as what ran before may tell."""
    first = turn % len(items)
    return [*items[first:], *items[:first]]


def take_turns(plan: Plan, ways: Sequence[Way], title: str) -> Rounds:
    """A run of each, round after round."""
    rounds: dict[str, dict[int, Run]] = {way.name: {} for way in ways}
    for turn in range(plan.rounds):
        for way in rotated([way for way in ways if turn % way.every == 0], turn):
            rounds[way.name][turn] = way.run()
        costs = ", ".join(
            f"{name} {runs[turn].cpu_per_call * 1e6:,.1f} µs" for name, runs in rounds.items() if turn in runs
        )
        plan.say(f"{title}, round {turn + 1} of {plan.rounds}: {costs}")
    return rounds


def rate_of(run: Run) -> float:
    return run.rate


def cpu_of(run: Run) -> float:
    return run.cpu_per_call


def spread_of(values: Iterable[float]) -> Figures:
    """The median with its quartiles, and the least and the most."""
    found = sorted(values)
    low, median, high = statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    return {"median": median, "low": low, "high": high, "least": found[0], "most": found[-1]}


def ratio_of(mine: Mapping[int, Run], theirs: Mapping[int, Run], of: Callable[[Run], float]) -> Figures:
    """A figure of one as a multiple of another's, over the rounds in which both took part."""
    return spread_of(of(mine[turn]) / of(theirs[turn]) for turn in mine.keys() & theirs.keys())


def figures_of(runs: Collection[Run]) -> Figures:
    """All the rounds of one server. Percentiles are of each round, and then the median of those."""
    figures: Figures = {
        "cpu_us": spread_of(run.cpu_per_call * 1e6 for run in runs),
        "per_second": spread_of(run.rate for run in runs),
        "client_us": statistics.median(run.client_cpu / run.calls * 1e6 for run in runs),
    }
    cuts = [statistics.quantiles(run.latencies, n=100) for run in runs if run.latencies]
    if cuts:
        figures |= {f"p{cut}_us": statistics.median(each[cut - 1] for each in cuts) * 1e6 for cut in (50, 95, 99)}
    return figures


def compared(rounds: Rounds, mine: str) -> Figures:
    """Each server's figures; `ratio` is the processor's time of a call of `mine` by its own."""
    return {
        name: figures_of(runs.values()) | ({} if name == mine else {"ratio": ratio_of(rounds[mine], runs, cpu_of)})
        for name, runs in rounds.items()
    }
