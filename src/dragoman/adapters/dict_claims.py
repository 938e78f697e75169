"""Used ids in the memory of one process."""

from __future__ import annotations

import heapq
import os

from dragoman.access.quota import Quota
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
        self._shares = Quota(most // 2)
        self._used: set[str] = set()
        self._ends: list[tuple[float, str, str]] = []
        self._forgotten = 0.0

    async def claim(self, id: str, until: float, holder: str = "") -> bool:
        return self.take(id, until, holder)

    def take(self, id: str, until: float, holder: str = "") -> bool:
        """The same, for code that does not wait."""
        now = self._clock.now().timestamp()
        while self._ends and self._ends[0][0] <= now:
            self._forgotten, past, whose = heapq.heappop(self._ends)
            self._used.discard(past)
            self._give_back(whose)
        # An id that was forgotten stays used if the clock is put back.
        if id in self._used or until + _GRACE <= self._forgotten:
            return False
        if len(self._used) >= self._most or (holder and not self._shares.take(holder)):
            raise NoFreeSlot(self._most, " for answers that count once")
        self._used.add(id)
        heapq.heappush(self._ends, (until + _GRACE, id, holder))
        return True

    def _give_back(self, holder: str) -> None:
        if holder:
            self._shares.give_back(holder)
