"""Used ids in the memory of one process."""

from __future__ import annotations

import heapq
import os

from dragoman.clock import Clock
from dragoman.errors import NoFreeSlot

MOST_CLAIMS = 65_536
"""Ids that are remembered at a time, about 200 bytes each. Beyond that, claims are refused and no id is forgotten."""
_GRACE = 60.0
"""Seconds for which an id is remembered beyond its time: for calls on their way, and clocks that are set."""


class DictClaims:
    """Implements `Claims`."""

    def __init__(self, clock: Clock, most: int = MOST_CLAIMS) -> None:
        self.keeper = os.urandom(8).hex()
        self._clock = clock
        self._most = most
        self._used: set[str] = set()
        self._ends: list[tuple[float, str]] = []

    async def claim(self, id: str, until: float) -> bool:
        return self.take(id, until)

    def take(self, id: str, until: float) -> bool:
        """The same, for code that does not wait."""
        now = self._clock.now().timestamp()
        while self._ends and self._ends[0][0] <= now:
            self._used.discard(heapq.heappop(self._ends)[1])
        if id in self._used:
            return False
        if len(self._used) >= self._most:
            raise NoFreeSlot(self._most, " for answers that count once")
        self._used.add(id)
        heapq.heappush(self._ends, (until + _GRACE, id))
        return True
