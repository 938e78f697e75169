"""When a loop that failed runs again: a decision without I/O, from the failures so far and the time."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class RestartLimit(Struct, frozen=True):
    """How often a loop is restarted, and how soon. All in seconds."""

    most: int = 5
    within: float = 60.0
    """One failure more than `most` in this time, and the loop is given up."""
    first_delay: float = 0.1
    longest_delay: float = 10.0


def delay_before_restart(failures: Sequence[float], now: float, limit: RestartLimit) -> float | None:
    """Seconds until the next start of a loop that failed at these times, the last of them now; None: give up.

    Each failure within the limit's time doubles the delay.
    """
    recent = sum(now - failed < limit.within for failed in failures)
    if recent > limit.most:
        return None
    return float(min(limit.first_delay * 2 ** (recent - 1), limit.longest_delay))
