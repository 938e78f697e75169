"""Who leaves a full cache first. Each order holds entries by key, the next to go first, and is O(1) in all it does."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol


class Order(Protocol):
    """What the cache needs of an order; `OrderedDict` has all of it but `touch`."""

    def __setitem__(self, key: str, entry: Any, /) -> None: ...
    def __delitem__(self, key: str, /) -> None: ...
    def __len__(self) -> int: ...
    def popitem(self, last: bool = True) -> tuple[str, Any]: ...

    def touch(self, key: str, /) -> None:
        """The entry has been used."""
        ...


class LeastRecentlyUsed(OrderedDict[str, Any]):
    """By last use."""

    # Not a method of our own around it: this is called for every hit.
    touch = OrderedDict.move_to_end


class OldestFirst(OrderedDict[str, Any]):
    """By arrival."""

    def touch(self, key: str, /) -> None:
        """Changes nothing."""


class LeastUsed:
    """By number of uses, and the least recently used first among those with equally many.

    The buckets form a ring of ascending uses, so that an entry's next bucket is always one step away.
    """

    def __init__(self) -> None:
        self._ring = _Bucket(-1)
        self._bucket_of: dict[str, _Bucket] = {}

    def __setitem__(self, key: str, entry: Any, /) -> None:
        self._put_above(self._ring, key, entry)

    def __delitem__(self, key: str, /) -> None:
        self._bucket_of.pop(key).take(key)

    def __len__(self) -> int:
        return len(self._bucket_of)

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        bucket = self._ring.before if last else self._ring.after
        key = next(reversed(bucket) if last else iter(bucket))
        del self._bucket_of[key]
        return key, bucket.take(key)

    def touch(self, key: str, /) -> None:
        bucket = self._bucket_of[key]
        self._put_above(bucket, key, bucket[key])
        bucket.take(key)

    def _put_above(self, bucket: _Bucket, key: str, entry: Any) -> None:
        above = bucket.after
        if above.uses != bucket.uses + 1:
            above = _Bucket(bucket.uses + 1, bucket)
        above[key] = entry
        self._bucket_of[key] = above


class _Bucket(OrderedDict[str, Any]):
    """Entries with equally many uses. It leaves the ring with the last of them."""

    before: _Bucket
    after: _Bucket

    def __init__(self, uses: int, before: _Bucket | None = None) -> None:
        super().__init__()
        self.uses = uses
        self.before = self if before is None else before
        self.after = self if before is None else before.after
        self.before.after = self.after.before = self

    def take(self, key: str) -> Any:
        entry = self.pop(key)
        if not self:
            self.before.after, self.after.before = self.after, self.before
        return entry


ORDERS: dict[str, type[Order]] = {"lru": LeastRecentlyUsed, "lfu": LeastUsed, "fifo": OldestFirst}
