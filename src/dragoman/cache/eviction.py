"""Who leaves a full cache first. Each order holds keys, the next to go first, and is O(1) in all it does."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar, Protocol


class Bucket(Protocol):
    """Keys in the order in which they leave; `OrderedDict` has all of it but `leave`."""

    def __len__(self) -> int: ...
    def popitem(self, last: bool = True) -> tuple[str, None]: ...

    def leave(self) -> None:
        """The last key is gone."""
        ...


class Order(Bucket, Protocol):
    """Itself the bucket of what has come and not been used, which goes before what is in the bucket `after` it.

    The cache counts how often an entry has been used, so that the orders need not.
    """

    @property
    def after(self) -> Bucket:
        """Itself if there is no other."""
        ...

    def __setitem__(self, key: str, nothing: None, /) -> None: ...

    def touch(self, key: str, uses: int, /) -> None:
        """The entry has been used: so often now."""
        ...

    def renew(self, key: str, uses: int, /) -> None:
        """The entry had been used so often, and begins anew."""
        ...

    def remove(self, key: str, uses: int, /) -> None:
        """The entry had been used so often, and is gone."""
        ...


class LeastRecentlyUsed(OrderedDict[str, None]):
    """By last use."""

    __slots__ = ("after",)

    def __init__(self) -> None:
        self.after = self

    # Not a method of our own around it: this is called for every hit. The number of uses is `last`, and never 0.
    touch: ClassVar[Any] = OrderedDict.move_to_end

    def renew(self, key: str, uses: int, /) -> None:
        self.move_to_end(key)

    def remove(self, key: str, uses: int, /) -> None:
        del self[key]

    def leave(self) -> None:
        """There is but one bucket."""


class OldestFirst(LeastRecentlyUsed):
    """By arrival."""

    __slots__ = ()

    def touch(self, key: str, uses: int, /) -> None:
        """Changes nothing."""


class LeastUsed(OrderedDict[str, None]):
    """By number of uses, and the least recently used first among those with equally many.

    Each number of uses has a bucket. They form a ring of ascending uses, so that the next to go are always one step
    away. The bucket of no uses is always there, and is the order; the others leave the ring with their last entry.
    """

    __slots__ = ("_before", "_buckets", "_uses", "after")

    def __init__(self, uses: int = 0, before: LeastUsed | None = None) -> None:
        self._uses = uses
        self._before = self.after = self
        self._buckets: dict[int, LeastUsed] = {}
        if before is not None:
            self._before, self.after, self._buckets = before, before.after, before._buckets
            self._before.after = self.after._before = self
        self._buckets[uses] = self

    def touch(self, key: str, uses: int, /) -> None:
        bucket = self._buckets[uses - 1]
        if uses not in self._buckets:
            LeastUsed(uses, bucket)
        self._buckets[uses][key] = None
        del bucket[key]
        if not bucket:
            bucket.leave()

    def renew(self, key: str, uses: int, /) -> None:
        if uses:
            self.remove(key, uses)
            self[key] = None
        else:
            self.move_to_end(key)

    def remove(self, key: str, uses: int, /) -> None:
        bucket = self._buckets[uses]
        del bucket[key]
        if not bucket:
            bucket.leave()

    def leave(self) -> None:
        if self._uses:
            self._before.after, self.after._before = self.after, self._before
            del self._buckets[self._uses]


ORDERS: dict[str, type[Order]] = {"lru": LeastRecentlyUsed, "lfu": LeastUsed, "fifo": OldestFirst}
