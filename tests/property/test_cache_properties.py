"""What holds for the cache after any sequence of operations: it does what a slow and simple one does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from dragoman.cache.bounded import BoundedCache, CacheEntry, CacheStats
from dragoman.cache.settings import CacheConfig
from dragoman.testing import ManualClock

START = 1_705_314_600_000  # When a ManualClock begins.
KEYS = "abcdef"
TAGS = "xyz"
PRIORITIES = ["low", "normal", "high"]

keys = st.sampled_from(KEYS)
sizes = st.integers(0, 20) | st.sampled_from([40, 69, 70, 71, 90, 91, 100, 101])
# In quarters of a second, which floats hold exactly.
lifetimes = st.sampled_from([None, 0, 250, 500, 1000])


@dataclass
class Kept:
    key: str
    value: int
    size: int
    ttl_ms: int
    priority: str
    tags: Iterable[str]
    created_at: float
    accessed_at: float
    created: int
    used: int
    uses: int = 0

    def rank(self, policy: str) -> tuple[int, ...]:
        order = {"lru": (self.used,), "lfu": (self.uses, self.used), "fifo": (self.created,)}
        return PRIORITIES.index(self.priority), *order[policy]

    def has_expired(self, now: float) -> bool:
        return self.ttl_ms > 0 and now - self.created_at >= self.ttl_ms / 1000


@dataclass
class Model:
    """The cache as one would explain it: a list, searched and sorted each time."""

    config: CacheConfig
    kept: list[Kept] = field(default_factory=list)
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    numbers: Any = field(default_factory=count)

    def size(self) -> int:
        return sum(one.size for one in self.kept)

    def find(self, key: str) -> Kept | None:
        return next((one for one in self.kept if one.key == key), None)

    def remove(self, doomed: list[Kept]) -> int:
        self.kept = [one for one in self.kept if one not in doomed]
        return len(doomed)

    def evict(self) -> None:
        self.kept.sort(key=lambda one: one.rank(self.config.eviction_policy))
        del self.kept[0]
        self.evictions += 1

    def set(self, key: str, value: int, size: int, ttl_ms: int | None, priority: str, tags: Any, now: float) -> bool:
        self.remove([one for one in self.kept if one.key == key])
        most = self.config.max_size_bytes
        if size > most:
            return False
        low = min(self.config.low_water_mark, self.config.high_water_mark)
        if self.size() + size > self.config.high_water_mark * most:
            while self.size() > 0 and self.size() + size > low * most:
                self.evict()
        while len(self.kept) >= self.config.max_entries:
            self.evict()
        lifetime = self.config.default_ttl_ms if ttl_ms is None else ttl_ms
        number = next(self.numbers)
        self.kept.append(Kept(key, value, size, lifetime, priority, tags, now, now, number, number))
        return True

    def get(self, key: str, now: float) -> Kept | None:
        one = self.find(key)
        if one is None or one.has_expired(now):
            self.remove([one] if one else [])
            self.misses += 1
            return None
        self.hits += 1
        one.uses += 1
        one.used = next(self.numbers)
        one.accessed_at = now
        return one


class CacheMachine(RuleBasedStateMachine):
    """Does the same to the cache and to the model."""

    policy: Any

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.values = count()
        self.cleaned_up_at: int | None = None

    @initialize(
        entries=st.integers(1, 5),
        default_ttl_ms=st.sampled_from([0, 500]),
        high=st.sampled_from([0.5, 0.9, 1.0]),
        low=st.sampled_from([0.1, 0.7, 0.9]),
    )
    def build(self, entries: int, default_ttl_ms: int, high: float, low: float) -> None:
        config = CacheConfig(
            max_size_bytes=100,
            max_entries=entries,
            default_ttl_ms=default_ttl_ms,
            eviction_policy=self.policy,
            high_water_mark=high,
            low_water_mark=low,
        )
        self.cache: BoundedCache[int] = BoundedCache(config, self.clock)
        self.model = Model(config)

    @rule(key=keys, size=st.integers(0, 20))
    def set_plainly(self, key: str, size: int) -> None:
        self.set(key, size, None, "normal", set())

    @rule(
        key=keys,
        size=sizes,
        ttl_ms=lifetimes,
        priority=st.sampled_from(PRIORITIES),
        tags=st.sets(st.sampled_from(TAGS)),
    )
    def set_with_options(self, key: str, size: int, ttl_ms: int | None, priority: Any, tags: set[str]) -> None:
        self.set(key, size, ttl_ms, priority, tags)

    def set(self, key: str, size: int, ttl_ms: int | None, priority: Any, tags: set[str]) -> None:
        value = next(self.values)
        stored = self.cache.set(key, value, size_bytes=size, ttl_ms=ttl_ms, priority=priority, tags=tags)
        assert stored == self.model.set(key, value, size, ttl_ms, priority, tags, self.clock.monotonic())

    @rule(several=st.lists(keys, min_size=1, max_size=5))
    def get(self, several: list[str]) -> None:
        for key in several:
            found, one = self.cache.get(key), self.model.get(key, self.clock.monotonic())
            assert found.hit == (one is not None)
            assert found.value == (one.value if one else None)
            assert found.entry == (entry_of(one) if one else None)

    @rule(key=keys)
    def delete(self, key: str) -> None:
        one = self.model.find(key)
        self.model.remove([one] if one else [])
        assert self.cache.delete(key) == (one is not None and not one.has_expired(self.clock.monotonic()))

    @rule(tag=st.sampled_from(TAGS))
    def invalidate(self, tag: str) -> None:
        assert self.cache.invalidate(tag) == self.model.remove([one for one in self.model.kept if tag in one.tags])

    @rule(quarters=st.integers(1, 5))
    def advance(self, quarters: int) -> None:
        self.clock.advance(quarters / 4)

    @rule()
    def clean_up(self) -> None:
        now = self.clock.monotonic()
        assert self.cache.clean_up() == self.model.remove([one for one in self.model.kept if one.has_expired(now)])
        self.cleaned_up_at = START + round(now * 1000)

    @invariant()
    def holds_what_the_model_holds_within_its_bounds(self) -> None:
        now = self.clock.monotonic()
        alive = {one.key for one in self.model.kept if not one.has_expired(now)}
        assert {key for key in KEYS if key in self.cache} == alive
        assert len(self.cache) == len(self.model.kept) <= self.model.config.max_entries
        asked = self.model.hits + self.model.misses
        stats = self.cache.stats()
        assert stats == CacheStats(
            entry_count=len(self.model.kept),
            current_size_bytes=self.model.size(),
            max_size_bytes=100,
            hit_count=self.model.hits,
            miss_count=self.model.misses,
            hit_rate=self.model.hits / asked if asked else 0.0,
            eviction_count=self.model.evictions,
            pressure_level=stats.pressure_level,
            last_cleanup_at=self.cleaned_up_at,
        )
        assert stats.current_size_bytes <= 100


def entry_of(one: Kept) -> CacheEntry[int]:
    return CacheEntry(
        key=one.key,
        value=one.value,
        size_bytes=one.size,
        created_at=START + round(one.created_at * 1000),
        last_accessed_at=START + round(one.accessed_at * 1000),
        access_count=one.uses,
        ttl_ms=one.ttl_ms,
    )


INVARIANTS = pytest.mark.requirement(
    "INV-MCP-CACHE-001",
    "INV-MCP-CACHE-002",
    "INV-MCP-CACHE-003",
    "INV-MCP-CACHE-004",
    "INV-MCP-CACHE-005",
    "INV-MCP-CACHE-006",
    "PRD-CACHE-04",
    "PRD-CACHE-09",
)


@pytest.mark.slow
@INVARIANTS
@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
def test_cache_does_what_a_slow_and_simple_one_does(policy: str) -> None:
    run_state_machine_as_test(type("Machine", (CacheMachine,), {"policy": policy}), settings=settings())
