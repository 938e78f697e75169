"""The time that purges go by, in a table that all processes share.

1. The wall clock can be wrong for a while: set by hand, by a virtual machine that goes on, by a time server that errs.
   What is deleted by a wrong clock is gone. So the time of purges is one that the wall clock has passed at every look
   for an hour. The hour is by a clock that nobody can set, that of the machine since it started.
2. A restart of the machine counts as the hour. Its clock then begins anew, and shows less than before; or it shows
   more, and then at least that much time has passed.
3. So the time of purges is one to two hours late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.clock import Clock

if TYPE_CHECKING:
    from dragoman.adapters.sqlite_writer import Transaction

LOOK_SECONDS: Final = 3600.0
_READ = "SELECT looked_at, earliest, agreed FROM purge_clock"
_STORE = "INSERT OR REPLACE INTO purge_clock (one, looked_at, earliest, agreed) VALUES (1, ?, ?, ?)"


class SqlitePurgeClock:
    """Implements `PurgeClock`."""

    def __init__(self, database: SqliteDatabase, clock: Clock, boot_clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._boot_clock = boot_clock

    async def now(self) -> float:
        return await self._database.write(self.now_in)

    def now_in(self, transaction: Transaction) -> float:
        """The same within a transaction."""
        wall, boot = self._clock.now().timestamp(), self._boot_clock()
        before = transaction.execute(_READ).fetchone()
        looked_at, earliest, agreed = before or (boot, wall, 0.0)
        earliest, agreed = min(earliest, wall), min(agreed, wall)
        if not 0.0 <= boot - looked_at < LOOK_SECONDS:
            looked_at, earliest, agreed = boot, wall, earliest
        if (looked_at, earliest, agreed) != before:
            transaction.execute(_STORE, (looked_at, earliest, agreed))
        return float(agreed)
