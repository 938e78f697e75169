"""The bounded cache beside cachetools: `python -m bench.cache [ROUNDS] [OPERATIONS]` prints JSON.

Caches take turns at the same keys in one process, and are compared by the processor's time. Theirs have neither a bound
in bytes nor water marks, statistics, priorities, tags or a lock, and only `TTLCache` has times to live; ours has all of
it, as shipped. Theirs are not told to weigh anything, so ours is told what a value weighs, but for a row of its own.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias

from bench.rounds import rotated, spread_of
from dragoman.cache.bounded import BoundedCache
from dragoman.cache.settings import CacheConfig

HAS_CACHETOOLS = find_spec("cachetools") is not None
ENTRIES = (
    1_000  # They stay in the processor's own cache: among more of them the figures tell what neighbours do to memory.
)
RIVALS = {"LRUCache": "lru", "TTLCache": "lru", "LFUCache": "lfu", "FIFOCache": "fifo"}
"""The classes of cachetools, each with the policy of ours that it is held against."""
GET, REPLACE, EVICT, MIX = "get, found", "set, replacing", "set, evicting", "3 gets to 1 set"
WEIGH = "set, replacing, weighed"
"""Ours only."""

_VALUE = b"x" * 200  # Kept results are bytes too.
_TTL_S = 3600
_SPREAD = 1.25  # The mix is about so many times as many keys as there is room for: most gets find something.

Keys: TypeAlias = Sequence[str]
Work: TypeAlias = Callable[[Any, Keys], None]


def _get(cache: BoundedCache[bytes], keys: Keys) -> None:
    get = cache.get
    for key in keys:
        get(key)


def _set(cache: BoundedCache[bytes], keys: Keys) -> None:
    store, value, size = cache.set, _VALUE, len(_VALUE)
    for key in keys:
        store(key, value, size_bytes=size)


def _weigh(cache: BoundedCache[bytes], keys: Keys) -> None:
    store, value = cache.set, _VALUE
    for key in keys:
        store(key, value)


def _mix(cache: BoundedCache[bytes], keys: Keys) -> None:
    get, store, value, size = cache.get, cache.set, _VALUE, len(_VALUE)
    for number, key in enumerate(keys):
        if number & 3:
            get(key)
        else:
            store(key, value, size_bytes=size)


def _get_theirs(cache: Any, keys: Keys) -> None:
    for key in keys:
        cache[key]  # Cheaper than their `get`, which looks twice.


def _set_theirs(cache: Any, keys: Keys) -> None:
    value = _VALUE
    for key in keys:
        cache[key] = value


def _mix_theirs(cache: Any, keys: Keys) -> None:
    get, value = cache.get, _VALUE
    for number, key in enumerate(keys):
        if number & 3:
            get(key)
        else:
            cache[key] = value


_OURS: dict[str, Work] = {GET: _get, REPLACE: _set, EVICT: _set, MIX: _mix, WEIGH: _weigh}
_THEIRS: dict[str, Work] = {GET: _get_theirs, REPLACE: _set_theirs, EVICT: _set_theirs, MIX: _mix_theirs}


def _makers() -> dict[str, Callable[[], Any]]:
    """By policy or class, an empty cache with room for so many entries, and for any number of bytes."""

    def ours(policy: Any) -> Callable[[], Any]:
        config = CacheConfig(max_entries=ENTRIES, eviction_policy=policy)
        return lambda: BoundedCache[bytes](config)

    makers = {policy: ours(policy) for policy in dict.fromkeys(RIVALS.values())}
    if not HAS_CACHETOOLS:
        return makers
    import cachetools

    return makers | {
        "LRUCache": lambda: cachetools.LRUCache(ENTRIES),
        "TTLCache": lambda: cachetools.TTLCache(ENTRIES, _TTL_S),
        "LFUCache": lambda: cachetools.LFUCache(ENTRIES),
        "FIFOCache": lambda: cachetools.FIFOCache(ENTRIES),
    }


def _keys(operations: int) -> dict[str, list[str]]:
    """What each kind of operation is done to, in a cache that holds the first `ENTRIES` keys."""
    some = random.Random(1)
    known = [_key(some.randrange(ENTRIES)) for _ in range(operations)]
    spread = [_key(some.randrange(int(ENTRIES * _SPREAD))) for _ in range(operations)]
    new = [_key(number) for number in range(ENTRIES, ENTRIES + operations)]
    return {GET: known, REPLACE: known, EVICT: new, MIX: spread, WEIGH: known}


def _key(number: int) -> str:
    return f"result-{number:012}"


def measure(rounds: int, operations: int) -> dict[str, Any]:
    """Operations a second of each cache, and ours by theirs; raises when a cache is not as full as it should be."""
    makers, keys = _makers(), _keys(operations)
    held = [_key(number) for number in range(ENTRIES)]
    rates: dict[str, dict[str, list[float]]] = {name: {} for name in makers}
    for turn in range(rounds + 1):
        for kind in keys:
            for name in rotated([*makers], turn):
                is_ours = name not in RIVALS
                work = (_OURS if is_ours else _THEIRS).get(kind)
                if work is None:
                    continue
                cache = makers[name]()
                (_set if is_ours else _set_theirs)(cache, held)
                started = time.process_time()
                work(cache, keys[kind])
                rates[name].setdefault(kind, []).append(operations / (time.process_time() - started))
                if len(cache) != ENTRIES:
                    raise SystemExit(f"{name} holds {len(cache)} of {ENTRIES} entries after {kind!r}")
    warm = {name: {kind: found[1:] for kind, found in kinds.items()} for name, kinds in rates.items()}
    return {
        "entries": ENTRIES,
        "operations": operations,
        "per_second": {name: {kind: spread_of(found) for kind, found in kinds.items()} for name, kinds in warm.items()},
        "ratios": {
            rival: {
                kind: statistics.median(a / b for a, b in zip(warm[policy][kind], found, strict=True))
                for kind, found in warm[rival].items()
            }
            for rival, policy in RIVALS.items()
            if rival in warm
        },
    }


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 70
    operations = int(sys.argv[2]) if len(sys.argv) > 2 else 2_000
    print(json.dumps(measure(rounds, operations)))
