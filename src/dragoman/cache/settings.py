"""How large the cache may be, and which entries leave it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from dragoman.sections import Bytes, Count, Milliseconds, Problem, Section, about


class CacheConfig(Section, frozen=True):
    """The bounded cache that holds results and artifacts."""

    max_size_bytes: Annotated[Bytes, about("The most that all entries together may weigh.", is_limit=True)] = (
        104_857_600
    )
    max_entries: Annotated[Count, about("The most entries.", is_limit=True)] = 10_000
    default_ttl_ms: Annotated[
        Annotated[int, Meta(ge=0)],
        about("How long an entry lives that has no time of its own; 0: for ever.", is_limit=True),
    ] = 3_600_000
    eviction_policy: Annotated[
        Literal["lru", "lfu", "fifo"],
        about("Who goes first: the least recently used, the least used, the oldest.", is_harmless=True),
    ] = "lru"
    high_water_mark: Annotated[
        Annotated[float, Meta(ge=0.5, le=1)],
        about("The part of `max_size_bytes` above which entries are evicted.", is_limit=True),
    ] = 0.9
    low_water_mark: Annotated[
        Annotated[float, Meta(ge=0.1, le=0.9)],
        about("The part of `max_size_bytes` that eviction goes down to.", is_limit=True),
    ] = 0.7
    cleanup_interval_ms: Annotated[Milliseconds, about("How often expired entries are removed.", is_limit=True)] = (
        60_000
    )

    def conflicts(self) -> Iterator[Problem]:
        if self.low_water_mark > self.high_water_mark:
            yield "low_water_mark", f"must not be above high_water_mark, {self.high_water_mark}"
