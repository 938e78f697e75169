"""How many calls a minute: a token bucket per key, kept as one number each.

The number is the moment at which the bucket will be full again. A call moves it on by a minute's share of one call; it
is refused when that would be more than a minute ahead. A moment in the past is as good as none, so such keys are
forgotten, and memory is bounded by the calls of the last minute.
"""

from __future__ import annotations

import math
from collections.abc import Hashable

_MINUTE = 60.0


class Rate:
    """At most `limit` calls a minute for each key; a whole minute's worth may come at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._share = _MINUTE / limit
        self._full_at: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: Hashable, now: float) -> int:
        """0, or after how many milliseconds the call may be repeated."""
        full_at = max(self._full_at.pop(key, now), now) + self._share
        ahead = full_at - now - _MINUTE
        if ahead > 1e-9:  # Not for what the sums of fractions are out by.
            self._full_at[key] = full_at - self._share
            return math.ceil(ahead * 1000 - 1e-6)
        self._full_at[key] = full_at  # At the end: the front holds those that have been quiet for longest.
        self._forget(now)
        return 0

    def _forget(self, now: float) -> None:
        for _ in range(2):  # Two out for one in keeps up with any number of callers.
            key = next(iter(self._full_at))
            if self._full_at[key] > now:
                return
            del self._full_at[key]
