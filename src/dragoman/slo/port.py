"""The port to the service levels of the past: counts by the minute, which all processes add to.

1. A count belongs to a minute, a tenant, an action and a kind of caller. Nobody's name is kept.
2. Old minutes become hours, and old hours are forgotten, so the number of rows is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

HOUR: Final = 60
"""Minutes."""
DAY: Final = 24 * HOUR


class LevelKey(NamedTuple):
    """What is counted."""

    tenant: str
    """Empty for requests of senders that nobody knows; so are the next two for requests that were not understood."""
    action: str
    caller: str
    """`internal` or `external`."""
    figure: str
    """A status of requests, or one of the names in `dragoman.slo.meter`."""
    bucket: int = 0
    """Of a histogram: its bounds are those in `dragoman.slo.meter`."""


class ServiceLevels(Protocol):
    """Minutes are counted from 1970. Raises `StorageError`s."""

    async def add(self, minute: int, counts: Mapping[LevelKey, int]) -> None:
        """Add to the counts of a minute: all of these, or none."""
        ...

    async def read(self, since: int) -> dict[LevelKey, int]:
        """The sums of the counts of this minute and all later ones. An hour counts as its first minute."""
        ...

    async def condense(self, minutes_before: int, hours_before: int) -> int:
        """Make hours of the minutes before a minute, and forget hours before another; how many rows went."""
        ...
