"""The `ServiceLevels` of a process that keeps nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dragoman.slo.port import HOUR, LevelKey


class DictServiceLevels:
    """Implements `ServiceLevels`."""

    def __init__(self) -> None:
        self._minutes: dict[int, Counter[LevelKey]] = {}

    async def add(self, minute: int, counts: Mapping[LevelKey, int]) -> None:
        self._minutes.setdefault(minute, Counter()).update(counts)

    async def read(self, since: int) -> dict[LevelKey, int]:
        total: Counter[LevelKey] = Counter()
        for minute, counts in self._minutes.items():
            if minute >= since:
                total.update(counts)
        return dict(total)

    async def condense(self, minutes_before: int, hours_before: int) -> int:
        gone = 0
        for minute in sorted(self._minutes):
            if minute < hours_before or (minute < minutes_before and minute % HOUR):
                counts = self._minutes.pop(minute)
                gone += len(counts)
                if minute >= hours_before:
                    await self.add(minute - minute % HOUR, counts)
        return gone
