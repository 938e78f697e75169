"""A cache that is never larger than it may be, in bytes and in entries.

1. Room is made before an entry is stored, so neither bound is passed at any moment.
2. An insert that would pass the high water mark evicts until all that is left, the new entry included, is at or below
   the low one. An insert at `max_entries` evicts one entry.
3. Entries of low priority are evicted before those of normal priority, and these before those of high; the policy
   decides within a priority. A new entry is stored whatever it displaces.
4. An expired entry is never returned. It takes its room until it is asked for, evicted or cleaned up.
5. Nothing is sorted or searched: an operation costs the same however many entries there are, plus one step for each
   entry that it removes. Only `clean_up` looks at all of them.
6. Operations may come from any thread. Each holds one lock, so that the entries and their size change together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf
from threading import RLock
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from dragoman.cache.eviction import ORDERS, Order
from dragoman.cache.settings import CacheConfig
from dragoman.clock import Clock, SystemClock, Timer

Priority: TypeAlias = Literal["low", "normal", "high"]
Pressure: TypeAlias = Literal["low", "medium", "high", "critical"]
V = TypeVar("V")

LONGEST_KEY = 256
# The part of `max_size_bytes` at which each begins. With the default marks a busy cache is 0.7 to 0.9 full.
PRESSURE_FROM: dict[Pressure, float] = {"critical": 0.85, "high": 0.7, "medium": 0.5, "low": 0.0}

_DEFAULTS = CacheConfig()
_BYTES = (bytes, bytearray, memoryview)
_encode = msgspec.json.Encoder().encode


class CacheEntry(Struct, Generic[V], frozen=True, kw_only=True, rename="camel"):
    """What is known about a stored value. Moments are milliseconds of the wall clock; `ttl_ms` 0 means for ever.

    Raises `ValueError` for what no entry can be.
    """

    key: str
    value: V
    size_bytes: int
    created_at: int
    last_accessed_at: int
    access_count: int = 0
    ttl_ms: int = 0

    def __post_init__(self) -> None:
        _check_key(self.key)
        _check_whole("size_bytes", self.size_bytes)
        _check_whole("created_at", self.created_at, least=1)
        _check_whole("last_accessed_at", self.last_accessed_at, least=1)
        _check_whole("access_count", self.access_count)
        _check_whole("ttl_ms", self.ttl_ms)


class CacheStats(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How full the cache is, and how it has done since it was made. Only what had to make room counts as evicted."""

    entry_count: int
    current_size_bytes: int
    max_size_bytes: int
    hit_count: int
    miss_count: int
    hit_rate: float
    eviction_count: int
    pressure_level: Pressure
    last_cleanup_at: int | None = None


class Lookup(Struct, Generic[V], frozen=True):
    """What `get` came back with: a miss has neither value nor entry."""

    hit: bool
    value: V | None = None
    _held: _Held[V] | None = None
    _epoch: float = 0.0

    @property
    def entry(self) -> CacheEntry[V] | None:
        """As it stands when asked for. Few ask, so it is not made before."""
        held = self._held
        if held is None:
            return None
        return CacheEntry(
            key=held.key,
            value=held.value,
            size_bytes=held.size,
            created_at=_milliseconds(self._epoch + held.created),
            last_accessed_at=_milliseconds(self._epoch + held.last_accessed),
            access_count=held.uses,
            ttl_ms=0 if held.lifetime == inf else _milliseconds(held.lifetime),
        )


_MISS: Lookup[Any] = Lookup(False)


class BoundedCache(Generic[V]):
    """Values by key. They are not copied, and weigh what they weighed when they were stored."""

    def __init__(self, config: CacheConfig = _DEFAULTS, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._monotonic = self._clock.monotonic
        # One anchor for all moments: they tell the order of events even when the wall clock is set back.
        self._epoch = self._clock.now().timestamp() - self._monotonic()
        self._high_mark = int(config.high_water_mark * config.max_size_bytes)
        self._low_mark = min(self._high_mark, int(config.low_water_mark * config.max_size_bytes))
        self._default_lifetime = _lifetime(config.default_ttl_ms)
        self._max_size, self._max_entries = config.max_size_bytes, config.max_entries
        self._size = 0
        self._held: dict[str, _Held[V]] = {}
        order = ORDERS[config.eviction_policy]
        self._low, self._normal, self._high = order(), order(), order()
        self._orders: dict[Priority, Order] = {"low": self._low, "normal": self._normal, "high": self._high}
        self._by_tag: dict[str, dict[str, _Held[V]]] = {}
        self._hits = self._misses = self._evictions = 0
        self._cleaned_up: float | None = None
        self._timer: Timer | None = None
        # Reentrant for finalisers, which the garbage collector may run at any point. Where speed counts it is taken
        # without `with`, which on CPython 3.11 costs as much again as the lock itself.
        self._lock = RLock()

    def get(self, key: str) -> Lookup[V]:
        """Look up, and count as a use."""
        self._lock.acquire()
        try:
            held = self._held.get(key)
            if held is not None:
                now = self._monotonic()
                if held.created + held.lifetime > now:
                    self._hits += 1
                    held.last_accessed = now
                    held.uses = uses = held.uses + 1
                    self._orders[held.priority].touch(key, uses)
                    return Lookup(True, held.value, held, self._epoch)
                self._drop(held)
            self._misses += 1
            return _MISS
        finally:
            self._lock.release()

    def set(
        self,
        key: str,
        value: V,
        size_bytes: int | None = None,
        ttl_ms: int | None = None,
        priority: Priority = "normal",
        tags: Iterable[str] = (),
    ) -> bool:
        """Store in place of what the key had. False: it is larger than the cache, which has nothing for the key now.

        All but the key and the value are meant to be named; to insist on it would cost a thirtieth of the time.
        Without `size_bytes` it weighs what its JSON and its key take in UTF-8; bytes weigh their length and the key.
        Raises `ValueError` for a value that has no JSON to be weighed, and for arguments that no entry can have.
        """
        if type(key) is not str or not key or len(key) > LONGEST_KEY:
            _check_key(key)
        if size_bytes is None:
            size_bytes = _weigh(key, value)
        elif type(size_bytes) is not int or size_bytes < 0:
            _check_whole("size_bytes", size_bytes)
        if ttl_ms is not None:
            _check_whole("ttl_ms", ttl_ms)
        lifetime = self._default_lifetime if ttl_ms is None else _lifetime(ttl_ms)
        try:
            order = self._orders[priority]
        except KeyError:
            raise ValueError(f"priority must be one of {', '.join(self._orders)}, not {priority!r}") from None
        labels: Collection[str] = frozenset(tags) if tags else ()
        held = self._held
        self._lock.acquire()
        try:
            now = self._monotonic()
            new = _Held(key, value, size_bytes, lifetime, now, now, priority, labels)
            # What goes is held on to until the lock is released: its end may run code that comes back here.
            old = held.get(key)
            if old is not None and old.priority == priority and self._size - old.size + size_bytes <= self._high_mark:
                order.renew(key, old.uses)
                held[key] = new
                self._size += size_bytes - old.size
                if old.tags:
                    self._untag(old)
            else:
                if old is not None:
                    self._drop(old)
                if self._size + size_bytes > self._high_mark:
                    if size_bytes > self._max_size:
                        return False
                    _displaced = self._make_room(size_bytes)
                if len(held) >= self._max_entries:
                    _first = self._evict()
                self._size += size_bytes
                order[key] = None
                held[key] = new
            if labels:
                for tag in labels:
                    self._by_tag.setdefault(tag, {})[key] = new
            return True
        finally:
            self._lock.release()

    def delete(self, key: str) -> bool:
        """Whether there was something that `get` would have found."""
        with self._lock:
            held = self._held.get(key)
            if held is None:
                return False
            self._drop(held)
            return held.created + held.lifetime > self._monotonic()

    def invalidate(self, tag: str) -> int:
        """Drop every entry with this tag, and say how many they were."""
        with self._lock:
            doomed = tuple(self._by_tag.get(tag, {}).values())
            for held in doomed:
                self._drop(held)
            return len(doomed)

    def clear(self) -> None:
        """Drop everything. The counts since the start stay."""
        with self._lock:
            doomed = tuple(self._held.values())
            for held in doomed:
                self._drop(held)

    def clean_up(self) -> int:
        """Remove what has expired, add up the size anew, and say how many were removed.

        One look at each entry: about a millisecond for ten thousand. Queues by time to live would find what has expired
        without looking at the rest, but every `set` would pay for them, and the sizes are to be added up anyway.
        """
        with self._lock:
            now = self._monotonic()
            doomed = [held for held in self._held.values() if held.created + held.lifetime <= now]
            for held in doomed:
                self._drop(held)
            self._size = sum([held.size for held in self._held.values()])
            self._cleaned_up = now
            return len(doomed)

    def start(self) -> None:
        """Clean up every `cleanup_interval_ms` on the running event loop, until `stop`."""
        if self._timer is None:
            self._timer = self._clock.call_later(self._config.cleanup_interval_ms / 1000, self._tick)

    def stop(self) -> None:
        """Clean up no more by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stats(self) -> CacheStats:
        """All figures of one moment."""
        with self._lock:
            asked = self._hits + self._misses
            fill = self._size / self._max_size
            return CacheStats(
                entry_count=len(self._held),
                current_size_bytes=self._size,
                max_size_bytes=self._max_size,
                hit_count=self._hits,
                miss_count=self._misses,
                hit_rate=self._hits / asked if asked else 0.0,
                eviction_count=self._evictions,
                pressure_level=next(level for level, least in PRESSURE_FROM.items() if fill >= least),
                last_cleanup_at=None if self._cleaned_up is None else _milliseconds(self._epoch + self._cleaned_up),
            )

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: str) -> bool:
        """Whether `get` would find it. Not a use."""
        held = self._held.get(key)
        return held is not None and held.created + held.lifetime > self._monotonic()

    def _make_room(self, size: int) -> list[_Held[V]]:
        most = max(0, self._low_mark - size)
        gone = []
        while self._size > most:
            gone.append(self._evict())
        return gone

    def _evict(self) -> _Held[V]:
        low, normal = self._low, self._normal
        bucket = low or low.after or normal or normal.after or self._high or self._high.after
        held = self._held.pop(bucket.popitem(False)[0])
        if not bucket:
            bucket.leave()
        self._size -= held.size
        self._evictions += 1
        if held.tags:
            self._untag(held)
        return held

    def _drop(self, held: _Held[V]) -> _Held[V]:
        key = held.key
        del self._held[key]
        self._orders[held.priority].remove(key, held.uses)
        self._size -= held.size
        if held.tags:
            self._untag(held)
        return held

    def _untag(self, held: _Held[V]) -> None:
        for tag in held.tags:
            tagged = self._by_tag[tag]
            del tagged[held.key]
            if not tagged:
                del self._by_tag[tag]

    def _tick(self) -> None:
        self._timer = None
        self.clean_up()
        self.start()


class _Held(Struct, Generic[V], eq=False, gc=False):
    """An entry, in seconds of the monotonic clock.

    The garbage collector is not told of it, so that many entries are no work to it, and making one never runs it. A
    value that refers to the very cache that it is in keeps that alive.
    """

    key: str
    value: V
    size: int
    lifetime: float
    created: float
    last_accessed: float
    priority: Priority
    tags: Collection[str]
    uses: int = 0


def _weigh(key: str, value: Any) -> int:
    try:
        body = memoryview(value).nbytes if isinstance(value, _BYTES) else len(_encode(value))
        return body + len(key.encode())
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ValueError(f"cannot weigh this {type(value).__name__}, give size_bytes: {error}") from error


def _check_key(key: str) -> None:
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise ValueError(f"a key must be a text of 1 to {LONGEST_KEY} characters")


def _check_whole(name: str, number: int, least: int = 0) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {number!r}")


def _lifetime(ttl_ms: int) -> float:
    return ttl_ms / 1000 if ttl_ms else inf


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
