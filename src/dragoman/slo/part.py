"""The service levels as a part of a server with actions: its metrics, and the counts that outlive the process."""

from __future__ import annotations

from typing import Any, Final

from dragoman.clock import Clock
from dragoman.errors import StorageError, StorageUncertain
from dragoman.parts.part import Contribution, Facilities, Part, ScheduledJob
from dragoman.slo.counting import CountActions
from dragoman.slo.meter import ActionMeter
from dragoman.slo.migrations import MIGRATIONS, PART
from dragoman.slo.port import DAY, ServiceLevels
from dragoman.storage.port import PurgeClock

KEEP_SECONDS: Final = 60.0
"""Between two times at which a process stores what it has counted: one that is killed loses no more than this."""
CONDENSE_SECONDS: Final = 3_600.0
MINUTES_KEPT: Final = DAY + 60
"""After this, minutes become hours: an hour more than the shortest window that is read."""
HOURS_KEPT: Final = 100 * DAY
"""A quarter, and a week."""


def slo_part(meter: ActionMeter) -> Part:
    """Shows and stores what `meter` counts."""

    def build(given: Facilities) -> Contribution:
        levels, purge_clock = given.storage.port(ServiceLevels), given.storage.port(PurgeClock)
        keeping = LevelKeeping(meter, levels, given.clock, purge_clock)
        return Contribution(
            gauges=meter.gauges(),
            around=(CountActions(meter, given.clock),),
            loops=(
                given.scheduled(ScheduledJob("slo.keep", KEEP_SECONDS, keeping.keep, everywhere=True)),
                given.scheduled(ScheduledJob("slo.condense", CONDENSE_SECONDS, keeping.condense)),
            ),
            stop=keeping.stop,
        )

    return Part(name=PART, migrations=MIGRATIONS, build=build)


class LevelKeeping:
    """Stores what a meter counts."""

    def __init__(self, meter: ActionMeter, levels: ServiceLevels, clock: Clock, purge_clock: PurgeClock) -> None:
        self._meter = meter
        self._levels = levels
        self._clock = clock
        self._purge_clock = purge_clock

    async def keep(self) -> dict[str, Any]:
        """Store what was counted since the last time. If that fails, it is stored the next time.

        What may have been stored all the same is not stored again: it would be counted twice.
        """
        counts = self._meter.take()
        if counts:
            try:
                await self._levels.add(self._minute(), counts)
            except StorageUncertain:
                raise
            except StorageError:
                self._meter.put_back(counts)
                raise
        return {"counts": len(counts)}

    async def condense(self) -> dict[str, Any]:
        """Make hours of old minutes, and forget what nobody reads."""
        now = int(await self._purge_clock.now() // 60)
        return {"rows": await self._levels.condense(now - MINUTES_KEPT, now - HOURS_KEPT)}

    async def stop(self) -> None:
        """Store what is left."""
        await self.keep()

    def _minute(self) -> int:
        return int(self._clock.now().timestamp() // 60)
