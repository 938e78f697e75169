"""The bounded cache: never too large, never stale, and the right ones leave first."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec
import pytest

from dragoman.cache import bounded as cache_module
from dragoman.cache.bounded import PRESSURE_FROM, BoundedCache, CacheEntry, CacheStats, Lookup
from dragoman.cache.settings import CacheConfig
from dragoman.config import make_config
from dragoman.errors import ConfigError
from dragoman.testing import ManualClock, open_server
from tests.support.waiting import PATIENCE

START = 1_705_314_600_000  # When a ManualClock begins.
POLICIES = ["lru", "lfu", "fifo"]


def small(clock: ManualClock | None = None, **settings: Any) -> BoundedCache[Any]:
    """A cache of 100 bytes whose marks are out of the way, unless the test sets them."""
    facts = {"max_size_bytes": 100, "max_entries": 10, "high_water_mark": 1.0, "low_water_mark": 0.9, **settings}
    return BoundedCache(CacheConfig(**facts), clock or ManualClock())


def fill(cache: BoundedCache[Any], keys: str, size: int = 1, **options: Any) -> None:
    for key in keys:
        cache.set(key, key.upper(), size_bytes=size, **options)


def kept(cache: BoundedCache[Any], keys: str = "abcdefghijklmnopqrstuvwxyz") -> str:
    return "".join(key for key in keys if key in cache)


# What an entry is, and what comes back


@pytest.mark.requirement("PRD-CACHE-08", "PRD-CACHE-01")
def test_hit_has_the_value_and_its_entry_with_the_moments_of_the_wall_clock() -> None:
    clock = ManualClock()
    cache = small(clock)
    clock.advance(1)
    cache.set("a", {"n": 1}, size_bytes=7, ttl_ms=5000)
    clock.advance(2)
    found = cache.get("a")
    assert (found.hit, found.value) == (True, {"n": 1})
    assert found.entry == CacheEntry(
        key="a",
        value={"n": 1},
        size_bytes=7,
        created_at=START + 1000,
        last_accessed_at=START + 3000,
        access_count=1,
        ttl_ms=5000,
    )


@pytest.mark.requirement("PRD-CACHE-08")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("then", ["a", "b"])
def test_what_was_found_stays_as_it_was_whatever_takes_its_place(policy: str, then: str) -> None:
    clock = ManualClock()
    cache = small(clock, max_entries=1, eviction_policy=policy)
    cache.set("a", "old", size_bytes=7, ttl_ms=5000)
    found = cache.get("a")
    clock.advance(1)
    cache.set(then, "new", size_bytes=9)
    cache.get(then)
    assert (found.value, cache.get(then).value) == ("old", "new")
    assert found.entry == CacheEntry(
        key="a", value="old", size_bytes=7, created_at=START, last_accessed_at=START, access_count=1, ttl_ms=5000
    )


@pytest.mark.requirement("PRD-CACHE-08")
def test_miss_has_neither_value_nor_entry() -> None:
    found = small().get("a")
    assert (found.hit, found.value, found.entry) == (False, None, None)
    assert found == Lookup(hit=False)


@pytest.mark.requirement("PRD-CACHE-08")
def test_none_can_be_stored_and_is_a_hit() -> None:
    cache = small()
    cache.set("a", None)
    assert (cache.get("a").hit, cache.get("a").value) == (True, None)


@pytest.mark.requirement("PRD-CACHE-01")
def test_entry_is_written_in_the_documents_spelling_with_their_defaults() -> None:
    entry = CacheEntry(key="k", value=[1], size_bytes=0, created_at=1, last_accessed_at=1)
    assert msgspec.json.decode(msgspec.json.encode(entry)) == {
        "key": "k",
        "value": [1],
        "sizeBytes": 0,
        "createdAt": 1,
        "lastAccessedAt": 1,
        "accessCount": 0,
        "ttlMs": 0,
    }


@pytest.mark.requirement("PRD-CACHE-01")
@pytest.mark.parametrize(
    "change",
    [
        {"key": ""},
        {"key": "k" * 257},
        {"key": 5},
        {"size_bytes": -1},
        {"size_bytes": 1.5},
        {"created_at": 0},
        {"last_accessed_at": 0},
        {"access_count": -1},
        {"access_count": True},
        {"ttl_ms": -1},
    ],
)
def test_what_no_entry_can_be_is_refused(change: dict[str, Any]) -> None:
    facts = {"key": "k", "value": 1, "size_bytes": 0, "created_at": 1, "last_accessed_at": 1}
    CacheEntry(**facts)
    with pytest.raises(ValueError, match=f"{next(iter(change))} must be"):
        CacheEntry(**{**facts, **change})


@pytest.mark.requirement("PRD-CACHE-01", "PRD-CACHE-09")
@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("", {}),
        ("k" * 257, {}),
        (b"k", {}),
        ("k", {"size_bytes": -1}),
        ("k", {"size_bytes": 1.5}),
        ("k", {"size_bytes": True}),
        ("k", {"ttl_ms": -1}),
        ("k", {"ttl_ms": 1.5}),
        ("k", {"priority": "urgent"}),
    ],
)
def test_set_refuses_what_no_entry_can_have_and_changes_nothing(key: Any, options: dict[str, Any]) -> None:
    cache = small()
    fill(cache, "k")
    with pytest.raises(ValueError, match=r"must be"):
        cache.set(key, 1, **options)
    assert (cache.get("k").value, len(cache)) == ("K", 1)


@pytest.mark.requirement("PRD-CACHE-01")
@pytest.mark.parametrize("key", ["k", "k" * 256, "ü" * 256])
def test_keys_of_up_to_256_characters_are_taken(key: str) -> None:
    cache = small(max_size_bytes=1000)
    assert cache.set(key, 1)
    assert key in cache


# Sizes


@pytest.mark.requirement("INV-MCP-CACHE-006")
@pytest.mark.parametrize(
    ("key", "value", "size"),
    [
        ("k", "abc", 1 + 5),
        ("k", "ü", 1 + 4),
        ("ü", "🙂", 2 + 6),
        ("k", 'a"b', 1 + 6),
        ("k", {"a": [1, None]}, 1 + 14),
        ("k", b"abc", 1 + 3),
        ("k", bytearray(b"abc"), 1 + 3),
        ("k", memoryview(b"abcdefgh").cast("I"), 1 + 8),
    ],
)
def test_value_weighs_the_utf8_of_its_json_and_of_its_key(key: str, value: Any, size: int) -> None:
    cache = small()
    cache.set(key, value)
    assert cache.stats().current_size_bytes == size


def circle() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


@pytest.mark.requirement("INV-MCP-CACHE-006", "INV-MCP-CACHE-001")
@pytest.mark.parametrize("value", [object(), {1, object()}, circle(), "\ud800", {"k": print}])
def test_what_cannot_be_weighed_is_refused_unless_its_size_is_given(value: Any) -> None:
    cache = small()
    with pytest.raises(ValueError, match=r"cannot weigh this .* give size_bytes"):
        cache.set("k", value)
    assert (len(cache), cache.stats().current_size_bytes) == (0, 0)
    assert cache.set("k", value, size_bytes=9)
    assert cache.stats().current_size_bytes == 9


@pytest.mark.requirement("INV-MCP-CACHE-006")
def test_size_follows_every_way_in_which_entries_come_and_go() -> None:
    clock = ManualClock()
    cache = small(clock)
    sizes = []

    def note() -> None:
        sizes.append((len(cache), cache.stats().current_size_bytes))

    for step in (
        lambda: fill(cache, "abc", 10),
        lambda: cache.set("a", 1, size_bytes=30, tags=["t"]),
        lambda: cache.set("d", 1, size_bytes=5, ttl_ms=1000),
        lambda: cache.delete("b"),
        lambda: cache.invalidate("t"),
        lambda: clock.advance(1),
        lambda: cache.get("d"),
        lambda: cache.clear(),
    ):
        step()
        note()
    assert sizes == [(3, 30), (3, 50), (4, 55), (3, 45), (2, 15), (2, 15), (1, 10), (0, 0)]


@pytest.mark.requirement("INV-MCP-CACHE-006")
def test_clean_up_adds_up_the_size_anew() -> None:
    cache = small()
    fill(cache, "abc", 10)
    cache._size = 999  # As nothing in the cache itself could leave it.
    cache.clean_up()
    assert cache.stats().current_size_bytes == 30


# Bounds


@pytest.mark.requirement("INV-MCP-CACHE-001", "PRD-CACHE-05")
def test_eviction_starts_above_the_high_mark_and_goes_down_to_the_low_one_with_the_new_entry() -> None:
    cache = small(high_water_mark=0.9, low_water_mark=0.7)
    fill(cache, "abcdefghi", 10)
    assert (kept(cache), cache.stats().current_size_bytes) == ("abcdefghi", 90)
    fill(cache, "j", 10)
    assert (kept(cache), cache.stats().current_size_bytes) == ("defghij", 70)
    assert cache.stats().eviction_count == 3


@pytest.mark.requirement("INV-MCP-CACHE-001", "PRD-CACHE-05")
@pytest.mark.parametrize(
    ("size", "left"), [(20, "efghiz"), (60, "iz"), (65, "z"), (70, "z"), (71, "z"), (100, "z"), (101, "abcdefghi")]
)
def test_large_entry_takes_the_place_of_all_that_it_must_and_never_overflows(size: int, left: str) -> None:
    cache = small(high_water_mark=0.9, low_water_mark=0.7)
    fill(cache, "abcdefghi", 10)
    assert cache.set("z", "Z", size_bytes=size) is (size <= 100)
    assert kept(cache) == left
    assert cache.stats().current_size_bytes == 10 * len(left.strip("z")) + (size if "z" in left else 0)


@pytest.mark.requirement("INV-MCP-CACHE-001", "INV-MCP-CACHE-003")
def test_entry_that_can_never_fit_displaces_only_the_old_value_of_its_key() -> None:
    cache = small()
    fill(cache, "abc", 10)
    assert cache.set("b", "B", size_bytes=101) is False
    assert (kept(cache), cache.stats().current_size_bytes, cache.stats().eviction_count) == ("ac", 20, 0)


@pytest.mark.requirement("INV-MCP-CACHE-002")
@pytest.mark.parametrize("policy", POLICIES)
def test_entry_count_never_passes_its_bound_even_with_entries_that_weigh_nothing(policy: str) -> None:
    cache = small(max_entries=3, eviction_policy=policy)
    for key in "abcde":
        cache.set(key, 1, size_bytes=0)
        assert len(cache) <= 3
    assert (kept(cache), cache.stats().eviction_count) == ("cde", 2)
    cache.set("f", 1, size_bytes=100)
    assert (kept(cache), len(cache)) == ("def", 3)


@pytest.mark.requirement("INV-MCP-CACHE-002")
def test_replacing_an_entry_of_a_full_cache_evicts_nothing() -> None:
    cache = small(max_entries=3)
    fill(cache, "abcb", 20)
    assert (kept(cache), cache.stats().eviction_count) == ("abc", 0)


@pytest.mark.requirement("INV-MCP-CACHE-001", "INV-MCP-CACHE-002", "INV-MCP-CACHE-005")
@pytest.mark.parametrize("policy", POLICIES)
def test_no_bound_is_passed_at_any_line_of_any_operation(policy: str) -> None:
    cache = small(max_entries=3, eviction_policy=policy, high_water_mark=0.9, low_water_mark=0.5)
    seen: list[tuple[int, int]] = []

    def look(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename == cache_module.__file__:
            seen.append((len(cache), cache._size))
            return look
        return None

    with traced(look):
        for key, size in zip("abcdefgabg", [30, 30, 30, 50, 90, 100, 101, 0, 0, 0], strict=True):
            cache.set(key, 1, size_bytes=size)
    assert len(seen) > 100
    assert max(count for count, _ in seen) == 3
    assert max(size for _, size in seen) == 100


@contextmanager
def traced(look: Any) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.requirement("PRD-CACHE-05")
def test_low_mark_above_the_high_one_counts_as_the_high_one() -> None:
    cache = small(high_water_mark=0.5, low_water_mark=0.9)
    fill(cache, "abcde", 10)
    fill(cache, "f", 10)
    assert (kept(cache), cache.stats().current_size_bytes) == ("bcdef", 50)


# Who goes first


@pytest.mark.requirement("INV-MCP-CACHE-004")
def test_least_recently_used_goes_first_and_every_access_is_a_use() -> None:
    clock = ManualClock()
    cache = small(clock, max_entries=3)
    for key in "abc":
        fill(cache, key)
        clock.advance(1)
    cache.get("a")
    clock.advance(1)
    fill(cache, "b")
    clock.advance(1)
    moments = {key: cache.get(key).entry.last_accessed_at - START for key in "cab"}  # type: ignore[union-attr]
    assert moments == {"c": 5000, "a": 5000, "b": 5000}
    fill(cache, "d")
    assert kept(cache) == "abd"
    fill(cache, "e")
    assert kept(cache) == "bde"


@pytest.mark.requirement("INV-MCP-CACHE-004")
def test_asking_whether_a_key_is_there_is_not_a_use() -> None:
    cache = small(max_entries=2)
    fill(cache, "ab")
    assert "a" in cache
    fill(cache, "c")
    assert kept(cache) == "bc"
    assert cache.stats().hit_count == 0


@pytest.mark.requirement("PRD-CACHE-04")
def test_least_used_goes_first_and_the_least_recently_used_of_equals() -> None:
    cache = small(max_entries=4, eviction_policy="lfu")
    fill(cache, "abcd")
    for key in "aaabbdcd":
        cache.get(key)
    left = []
    for key in "efgh":
        cache.set(key, 1, size_bytes=1)
        for _ in range(5):
            cache.get(key)
        left.append(kept(cache))
    assert left == ["abde", "adef", "aefg", "efgh"]


@pytest.mark.requirement("PRD-CACHE-04")
def test_least_used_is_still_found_when_the_less_used_have_been_deleted() -> None:
    cache = small(max_entries=4, eviction_policy="lfu")
    fill(cache, "abcd")
    for key in "aabbbbcc":
        cache.get(key)
    for key in "da":
        cache.delete(key)
    fill(cache, "e")
    cache.delete("e")
    fill(cache, "fgh")
    assert kept(cache) == "bcgh"


@pytest.mark.requirement("PRD-CACHE-04")
def test_replacing_an_entry_begins_its_count_of_uses_anew() -> None:
    cache = small(max_entries=2, eviction_policy="lfu")
    fill(cache, "ab")
    for key in "aab":
        cache.get(key)
    fill(cache, "a")
    fill(cache, "c")
    assert kept(cache) == "bc"


@pytest.mark.requirement("PRD-CACHE-04")
def test_oldest_goes_first_whatever_has_been_used() -> None:
    cache = small(max_entries=3, eviction_policy="fifo")
    fill(cache, "abca")
    for key in "bbb":
        cache.get(key)
    fill(cache, "de")
    assert kept(cache) == "ade"


@pytest.mark.requirement("PRD-CACHE-04")
def test_policy_is_lru_unless_set_and_others_are_refused() -> None:
    assert CacheConfig().eviction_policy == "lru"
    with pytest.raises(ConfigError):
        make_config({"cache": {"evictionPolicy": "random"}})


@pytest.mark.requirement("PRD-CACHE-09")
@pytest.mark.parametrize("policy", POLICIES)
def test_low_priority_goes_before_normal_and_normal_before_high(policy: str) -> None:
    cache = small(max_entries=4, eviction_policy=policy)
    fill(cache, "a", priority="high")
    fill(cache, "b")
    fill(cache, "c", priority="low")
    fill(cache, "d", priority="low")
    for key in "bccdd":
        cache.get(key)
    left = []
    for key in "efghi":
        fill(cache, key, priority="high")
        left.append(kept(cache))
    assert left == ["abde", "abef", "aefg", "efgh", "fghi"]


@pytest.mark.requirement("PRD-CACHE-09")
def test_replacing_an_entry_can_change_its_priority() -> None:
    cache = small(max_entries=2)
    fill(cache, "ab", priority="high")
    fill(cache, "a", priority="low")
    fill(cache, "c")
    assert kept(cache) == "bc"


class Moment(float):
    """A moment that counts how often any moment is compared."""

    compared = 0

    def _count(name: str) -> Any:
        def compare(self: Moment, other: object) -> Any:
            Moment.compared += 1
            return getattr(float, name)(self, other)

        return compare

    __lt__, __le__, __gt__, __ge__, __eq__ = map(_count, ["__lt__", "__le__", "__gt__", "__ge__", "__eq__"])
    __hash__ = float.__hash__

    def __add__(self, other: float) -> Moment:
        return Moment(float(self) + float(other))


class ComparingClock(ManualClock):
    def monotonic(self) -> float:
        self.advance(1)
        return Moment(super().monotonic())


@pytest.mark.requirement("INV-MCP-CACHE-004", "PRD-CACHE-04")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("bound", "evictions"), [({"max_entries": 1000}, 10), ({"max_size_bytes": 1000}, 101)])
def test_eviction_compares_no_entries_however_many_there_are(
    policy: str, bound: dict[str, int], evictions: int
) -> None:
    cache = small(ComparingClock(), **{"max_entries": 9999, "max_size_bytes": 9999, **bound}, eviction_policy=policy)
    for number in range(1000):
        cache.set(str(number), number, size_bytes=1)
    Moment.compared = 0
    for number in range(1000, 1010):
        cache.set(str(number), number, size_bytes=1)
    assert (cache.stats().eviction_count, Moment.compared) == (evictions, 0)


# Time


@pytest.mark.requirement("INV-MCP-CACHE-003", "PRD-CACHE-03", "PRD-CACHE-08")
@pytest.mark.parametrize(
    ("default", "ttl_ms", "alive_at", "gone_at"),
    [
        (500, None, 0.499, 0.5),
        (500, 250, 0.249, 0.25),
        (0, 250, 0.249, 0.25),
        (500, 0, 1e9, None),
        (0, None, 1e9, None),
    ],
)
def test_entry_is_a_miss_once_its_time_is_up(
    default: int, ttl_ms: int | None, alive_at: float, gone_at: float | None
) -> None:
    clock = ManualClock()
    clock.now = lambda: ManualClock().now()  # type: ignore[method-assign]  # A thousand million seconds fit no calendar.
    cache = small(clock, default_ttl_ms=default)
    fill(cache, "a", ttl_ms=ttl_ms)
    clock.advance(alive_at)
    assert ("a" in cache, cache.get("a").hit) == (True, True)
    if gone_at is not None:
        clock.advance(gone_at - alive_at)
        assert ("a" in cache, cache.get("a"), len(cache)) == (False, Lookup(hit=False), 0)


@pytest.mark.requirement("INV-MCP-CACHE-003")
def test_use_does_not_prolong_a_life_and_replacing_does() -> None:
    clock = ManualClock()
    cache = small(clock, default_ttl_ms=1000)
    fill(cache, "ab")
    clock.advance(0.75)
    cache.get("a")
    fill(cache, "b")
    clock.advance(0.25)
    assert kept(cache) == "b"


@pytest.mark.requirement("PRD-CACHE-03", "INV-MCP-CACHE-003")
def test_expired_entry_cannot_be_deleted_a_second_time() -> None:
    clock = ManualClock()
    cache = small(clock)
    fill(cache, "ab", ttl_ms=1000)
    assert (cache.delete("a"), cache.delete("a")) == (True, False)
    clock.advance(1)
    assert (cache.delete("b"), len(cache)) == (False, 0)


@pytest.mark.requirement("INV-MCP-CACHE-003", "PRD-CACHE-03", "PRD-CACHE-06")
def test_periodic_clean_up_removes_what_has_expired_until_it_is_stopped() -> None:
    clock = ManualClock()
    cache = small(clock, cleanup_interval_ms=60_000)
    cache.start()
    cache.start()
    fill(cache, "a", ttl_ms=59_000)
    fill(cache, "b", ttl_ms=61_000)
    fill(cache, "c", ttl_ms=0)
    clock.advance(59.5)
    held = [len(cache)]
    clock.advance(0.5)
    held.append(len(cache))
    assert cache.stats().last_cleanup_at == START + 60_000
    clock.advance(60)
    held.append(len(cache))
    cache.stop()
    cache.stop()
    fill(cache, "d", ttl_ms=1000)
    clock.advance(600)
    held.append(len(cache))
    assert held == [3, 2, 1, 2]
    assert cache.stats().last_cleanup_at == START + 120_000
    assert (cache.clean_up(), cache.clean_up()) == (1, 0)
    assert cache.stats().eviction_count == 0


class Noticed:
    """A value that says when it has been let go of."""

    def __init__(self, gone: asyncio.Event) -> None:
        self._gone = gone

    def __del__(self) -> None:
        self._gone.set()


@pytest.mark.requirement("INV-MCP-CACHE-003")
async def test_periodic_clean_up_runs_on_the_event_loop() -> None:
    cache: BoundedCache[Noticed] = BoundedCache(CacheConfig(cleanup_interval_ms=1))
    gone = asyncio.Event()
    cache.set("a", Noticed(gone), size_bytes=1, ttl_ms=1)
    cache.start()
    await asyncio.wait_for(gone.wait(), PATIENCE)
    cache.stop()
    assert len(cache) == 0


# Tags


def test_invalidating_a_tag_drops_its_entries_and_no_others() -> None:
    cache = small()
    fill(cache, "ab", tags=["x"])
    fill(cache, "c", tags=["x", "y"])
    fill(cache, "d", tags=["y"])
    fill(cache, "e")
    fill(cache, "b", tags=["y"])
    assert (cache.invalidate("x"), kept(cache)) == (2, "bde")
    assert (cache.invalidate("x"), cache.invalidate("z"), kept(cache)) == (0, 0, "bde")
    assert (cache.invalidate("y"), kept(cache)) == (2, "e")


def test_tags_leave_nothing_behind_when_their_entries_go() -> None:
    clock = ManualClock()
    cache = small(clock, max_entries=2)
    for number in range(10):
        cache.set(str(number), number, tags=[f"t{number}", "all"], ttl_ms=1000)
    assert sorted(cache._by_tag) == ["all", "t8", "t9"]
    clock.advance(1)
    cache.clean_up()
    assert cache._by_tag == {}


# Statistics and settings


@pytest.mark.requirement("PRD-CACHE-06")
def test_statistics_count_since_the_start() -> None:
    cache = small(max_entries=2)
    assert cache.stats() == CacheStats(
        entry_count=0,
        current_size_bytes=0,
        max_size_bytes=100,
        hit_count=0,
        miss_count=0,
        hit_rate=0.0,
        eviction_count=0,
        pressure_level="low",
    )
    fill(cache, "abc", 10)
    for key in "abcb":
        cache.get(key)
    cache.clean_up()
    cache.clear()
    fill(cache, "d", 10)
    assert msgspec.to_builtins(cache.stats()) == {
        "entryCount": 1,
        "currentSizeBytes": 10,
        "maxSizeBytes": 100,
        "hitCount": 3,
        "missCount": 1,
        "hitRate": 0.75,
        "evictionCount": 1,
        "pressureLevel": "low",
        "lastCleanupAt": START,
    }


@pytest.mark.requirement("PRD-CACHE-06")
def test_last_clean_up_is_left_out_before_there_was_one() -> None:
    assert "lastCleanupAt" not in msgspec.to_builtins(small().stats())


@pytest.mark.requirement("PRD-CACHE-07")
@pytest.mark.parametrize(
    ("size", "level"),
    [
        (0, "low"),
        (499, "low"),
        (500, "medium"),
        (699, "medium"),
        (700, "high"),
        (849, "high"),
        (850, "critical"),
        (1000, "critical"),
    ],
)
def test_pressure_rises_with_the_fill_level(size: int, level: str) -> None:
    cache = small(max_size_bytes=1000)
    cache.set("a", 1, size_bytes=size)
    assert cache.stats().pressure_level == level
    assert list(PRESSURE_FROM.values()) == sorted(PRESSURE_FROM.values(), reverse=True)


@pytest.mark.requirement("PRD-CACHE-02", "PRD-CACHE-03", "PRD-CACHE-05")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxSizeBytes", 0),
        ("maxEntries", 0),
        ("defaultTtlMs", -1),
        ("cleanupIntervalMs", 0),
        ("highWaterMark", 0.49),
        ("highWaterMark", 1.01),
        ("lowWaterMark", 0.09),
        ("lowWaterMark", 0.91),
    ],
)
def test_settings_outside_their_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError):
        make_config({"cache": {name: value}})


@pytest.mark.requirement("PRD-CACHE-02")
async def test_the_cache_of_a_server_holds_as_much_as_is_set() -> None:
    settings = {"max_entries": 3, "max_size_bytes": 1000, "high_water_mark": 1.0, "low_water_mark": 0.5}
    async with open_server([], {"cache": settings}) as server:
        cache = server.runtime.cache
        for name in "abcde":
            assert cache.set(name, name, size_bytes=100)
        assert (cache.stats().entry_count, cache.stats().eviction_count) == (3, 2)
        assert cache.set("f", "f", size_bytes=1000)
        assert (cache.stats().entry_count, cache.stats().current_size_bytes) == (1, 1000)
        assert not cache.set("g", "g", size_bytes=1001)


# Several at once


class Farewell:
    """A value that, when it is let go of, stores something under its own key."""

    def __init__(self, cache: BoundedCache[Any], key: str, size: int) -> None:
        self._set = lambda: cache.set(key, "farewell", size_bytes=size)

    def __del__(self) -> None:
        self._set()


@pytest.mark.requirement("INV-MCP-CACHE-005", "INV-MCP-CACHE-001", "INV-MCP-CACHE-002")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "stored",
    [
        [("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1)],
        [("a", 30), ("b", 30), ("c", 30), ("d", 60), ("e", 90)],
        [("a", 10), ("a", 20), ("a", 101)],
    ],
)
def test_value_that_comes_back_to_the_cache_at_its_end_finds_it_whole(
    policy: str, stored: list[tuple[str, int]]
) -> None:
    cache = small(max_entries=3, eviction_policy=policy)
    for key, size in stored:
        cache.set(key, Farewell(cache, key, size % 101), size_bytes=size)
        before = cache.stats()
        assert (before.entry_count <= 3, before.current_size_bytes <= 100) == (True, True)
        cache.clean_up()
        assert cache.stats().current_size_bytes == before.current_size_bytes
    cache.clear()
    cache.set("z", Farewell(cache, "z", 7), size_bytes=1)
    cache.clear()
    assert cache.get("z").value == "farewell"


class Unreachable(Farewell):
    """One that only the garbage collector can let go of."""

    def __init__(self, cache: BoundedCache[Any], key: str, size: int) -> None:
        super().__init__(cache, key, size)
        self._self = self


@pytest.mark.slow
@pytest.mark.requirement("INV-MCP-CACHE-005", "INV-MCP-CACHE-001", "INV-MCP-CACHE-002", "INV-MCP-CACHE-006")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("before", "key"), [("", "a"), ("a", "a"), ("ab", "a"), ("abc", "a"), ("bcd", "e")])
def test_garbage_collected_while_something_is_stored_finds_the_cache_whole(policy: str, before: str, key: str) -> None:
    cache = small(max_entries=3, eviction_policy=policy)
    fill(cache, before)
    thresholds = gc.get_threshold()
    gc.collect()
    Unreachable(cache, key, 10)
    gc.set_threshold(1)  # It runs for whatever is made next that it has to look after.
    try:
        cache.set("a", "A", size_bytes=20)
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
    held = [found.entry.size_bytes for key in "abcde" if (found := cache.get(key)).entry]
    assert (cache.stats().entry_count, cache.stats().current_size_bytes) == (len(held), sum(held))
    assert cache.get("a").hit


@pytest.mark.slow
def test_entries_are_no_work_for_the_garbage_collector() -> None:
    cache = small(max_entries=1000)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1000):
        cache.set(str(number), [], size_bytes=0)
    assert len(gc.get_objects()) - before < 1100  # The thousand values themselves.


@pytest.mark.requirement("INV-MCP-CACHE-005", "INV-MCP-CACHE-001", "INV-MCP-CACHE-002", "INV-MCP-CACHE-006")
@pytest.mark.parametrize("policy", POLICIES)
def test_threads_never_see_or_leave_behind_a_partial_state(policy: str) -> None:
    cache = small(max_entries=20, max_size_bytes=1000, eviction_policy=policy, high_water_mark=0.9, low_water_mark=0.5)
    keys = [f"k{number}" for number in range(40)]
    problems: list[object] = []
    begin = threading.Barrier(5)

    def hammer(seed: int) -> None:
        begin.wait()
        for turn in range(3000):
            number = (turn * (2 * seed + 1) + seed) % 40
            try:
                match turn % 7:
                    case 0 | 1 | 2:
                        cache.set(keys[number], number, size_bytes=number * 3, tags=[str(number % 4)])
                    case 3:
                        cache.delete(keys[number])
                    case 4 if turn % 35 == 4:
                        cache.invalidate(str(number % 4))
                    case _:
                        found = cache.get(keys[number])
                        if found.hit and found.value != number:
                            problems.append((number, found.value))
            except Exception as error:
                problems.append(error)

    def watch() -> None:
        begin.wait()
        for _ in range(3000):
            stats = cache.stats()
            if stats.current_size_bytes > 1000 or stats.entry_count > 20:
                problems.append(stats)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(4)]
        threads.append(threading.Thread(target=watch))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert problems == []
    held = [found.entry.size_bytes for key in keys if (found := cache.get(key)).entry]
    assert (cache.stats().entry_count, cache.stats().current_size_bytes) == (len(held), sum(held))
    assert sum(cache.invalidate(str(tag)) for tag in range(4)) == len(held)
    assert (len(cache), cache.stats().current_size_bytes) == (0, 0)
