"""How many calls a minute: a token bucket per key, kept as one number each.

The number is the moment at which the bucket will be full again. A call moves it on by a minute's share of one call; it
is refused when that would be more than a minute ahead. A moment in the past is as good as none, so such keys are
forgotten, and memory is bounded by the calls of the last minute.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from itertools import islice

from dragoman.calls.settings import LimitsConfig
from dragoman.errors import RateLimited
from dragoman.sections import join

_MINUTE = 60.0


class Rate:
    """At most `limit` calls a minute for each key; a whole minute's worth may come at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._share = _MINUTE / limit
        self._full_at: dict[Hashable, float] = {}

    def __len__(self) -> int:
        return len(self._full_at)

    def wait_ms(self, key: Hashable, now: float) -> int:
        """0 when a call may be made now, else after how many milliseconds."""
        ahead = self._full_at.get(key, now) + self._share - now - _MINUTE
        return math.ceil(ahead * 1000 - 1e-6) if ahead > 1e-9 else 0  # Fractions do not add up exactly.

    def take(self, key: Hashable, now: float) -> None:
        """Count a call."""
        full_at = self._full_at.pop(key, now)
        self._full_at[key] = (full_at if full_at > now else now) + self._share  # At the end: the front is the oldest.
        self._forget(now)

    def _forget(self, now: float) -> None:
        for key in tuple(islice(self._full_at, 2)):  # Two out for one in keeps up with any number of callers.
            if self._full_at[key] > now:
                return
            del self._full_at[key]


class Rates:
    """How many calls a minute one caller may make: of one tool, and in all."""

    def __init__(self, limits: LimitsConfig) -> None:
        of_all = limits.calls_per_minute_per_caller
        self._overall = Rate(of_all) if of_all is not None else None
        self._by_tool = {
            name: Rate(own.calls_per_minute) for name, own in limits.tools.items() if own.calls_per_minute is not None
        }

    @property
    def are_set(self) -> bool:
        return self._overall is not None or bool(self._by_tool)

    def take(self, caller: str, tool: str, now: float) -> None:
        """Count a call, or raise `RateLimited` and count nothing."""
        own, overall = self._by_tool.get(tool), self._overall
        own_wait = own.wait_ms(caller, now) if own is not None else 0
        overall_wait = overall.wait_ms(caller, now) if overall is not None else 0
        if own is not None and own_wait > overall_wait:
            setting = join(join("limits.tools", tool), "calls_per_minute")
            raise RateLimited(own.limit, own_wait, f" of {tool!r}", setting)
        if overall is not None and overall_wait:
            raise RateLimited(overall.limit, overall_wait, setting="limits.calls_per_minute_per_caller")
        if own is not None:
            own.take(caller, now)
        if overall is not None:
            overall.take(caller, now)
