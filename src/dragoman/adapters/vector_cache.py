"""Vectors in memory, scored exactly.

1. What is kept of a tenant's vectors follows the table: only what was stored since is read. Vectors that are gone stay
   until there are many of them; whoever searches asks the table whether what was found is still there.
2. All that is kept has at most `max_bytes`. The tenant that was not searched for the longest time is dropped first; of
   one that has more vectors than that, the rest is read from the table for each search, piece by piece.
3. NumPy is imported when the first vector is searched for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float32]
    Integers: TypeAlias = NDArray[np.int64]
    Scored: TypeAlias = tuple[Integers, NDArray[np.float64]]

Key: TypeAlias = tuple[int, int, int]
"""Tenant, model, and the bytes of a vector."""
Row: TypeAlias = tuple[int, int, bytes]
"""A number that ascends with the time at which a vector was stored, the passage's number, and the vector."""
ReadNewer: TypeAlias = Callable[[int], Iterable[Row]]
"""The rows behind a number, in ascending order."""

_FIRST_ROWS, _MOST_ROWS, _ROWS_AT_ONCE = 64, 4096, 512
_DIGITS = 6
"""Of a score: further ones depend on which vectors are multiplied together."""
_NUMBER_BYTES = 8


class _Block:
    """Some vectors below each other."""

    def __init__(self, rows: int, dimensions: int) -> None:
        import numpy as np

        self.numbers: Integers = np.empty(rows, np.int64)
        self.vectors: Floats = np.empty((rows, dimensions), np.float32)
        self.used = 0

    @property
    def room(self) -> int:
        return len(self.numbers) - self.used

    def add(self, rows: list[Row]) -> None:
        import numpy as np

        end = self.used + len(rows)
        self.numbers[self.used : end] = [passage for _, passage, _ in rows]
        joined = b"".join([vector for _, _, vector in rows])
        self.vectors[self.used : end] = np.frombuffer(joined, "<f4").reshape(len(rows), -1)
        self.used = end


class _Kept:
    """The vectors of one tenant and model."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.blocks: list[_Block] = []
        self.bytes = 0
        self.last = 0


class VectorCache:
    """The vectors of a process. For any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._bytes = 0

    def forget(self, key: Key) -> None:
        """Read the vectors of a tenant and model anew when they are searched again."""
        with self._lock:
            gone = self._kept.pop(key, None)
            if gone is not None:
                self._bytes -= gone.bytes

    def count(self, key: Key) -> int:
        """How many vectors are kept of a tenant and model, with those that are gone."""
        kept = self._kept.get(key)
        return sum(block.used for block in kept.blocks) if kept else 0

    @property
    def used_bytes(self) -> int:
        return self._bytes

    def scores(self, key: Key, vector: bytes, read_newer: ReadNewer) -> Iterator[Scored]:
        """The numbers and scores of a tenant's passages, in several pieces."""
        import numpy as np

        if len(vector) % 4 or not vector:
            return
        query = np.frombuffer(vector, "<f4")
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
        with kept.lock:
            rest = self._follow(key, kept, len(query), iter(read_newer(kept.last)))
            pieces = [(block.numbers[: block.used], block.vectors[: block.used]) for block in kept.blocks]
        for numbers, vectors in pieces:
            yield numbers, _score(vectors, query)
        while rows := [*islice(rest, _MOST_ROWS)]:
            block = _Block(len(rows), len(query))
            block.add(rows)
            yield block.numbers, _score(block.vectors, query)

    def _follow(self, key: Key, kept: _Kept, dimensions: int, rows: Iterator[Row]) -> Iterator[Row]:
        """Keep what was stored since, as far as there is room; what is left over."""
        waiting: list[Row] = []
        while waiting := waiting or [*islice(rows, _ROWS_AT_ONCE)]:
            if not (kept.blocks and kept.blocks[-1].room) and not self._make_room(key, kept, dimensions):
                break
            block = kept.blocks[-1]
            fitting, waiting = waiting[: block.room], waiting[block.room :]
            block.add(fitting)
            kept.last = fitting[-1][0]
        return chain(waiting, rows)

    def _make_room(self, key: Key, kept: _Kept, dimensions: int) -> bool:
        rows = min(_MOST_ROWS, len(kept.blocks[-1].numbers) * 2) if kept.blocks else _FIRST_ROWS
        size = rows * (4 * dimensions + _NUMBER_BYTES)
        with self._lock:
            if self._kept.get(key) is not kept:
                return False  # It was dropped meanwhile, and its bytes are another's.
            while self._bytes + size > self._max_bytes and next(iter(self._kept)) != key:
                self._bytes -= self._kept.popitem(last=False)[1].bytes
            if self._bytes + size > self._max_bytes:
                return False
            self._bytes += size
            kept.bytes += size
        kept.blocks.append(_Block(rows, dimensions))
        return True


def _score(vectors: Floats, query: Floats) -> NDArray[np.float64]:
    import numpy as np

    scores: NDArray[np.float64] = (vectors @ query).astype(np.float64)
    return np.round(scores, _DIGITS)


def best(
    scored: Iterable[Scored], limit: int, may_find: Callable[[Integers], Any], is_there: Callable[[int], bool]
) -> list[tuple[int, float]]:
    """The passages with the highest scores, the lower number first where these are equal.

    `may_find` makes a mask of numbers.
    """
    import numpy as np

    pieces = [*scored]
    if not pieces or limit < 1:
        return []
    numbers = np.concatenate([piece[0] for piece in pieces])
    scores = np.concatenate([piece[1] for piece in pieces])
    chosen = may_find(numbers)
    numbers, scores = numbers[chosen], scores[chosen]
    found: list[tuple[int, float]] = []
    tried, most = 0, 2 * limit + 16
    while True:
        top = _top(numbers, scores, most)
        for place in top[tried:]:
            number = int(numbers[place])
            if is_there(number):
                found.append((number, float(scores[place])))
                if len(found) == limit:
                    return found
        if len(top) == len(numbers):
            return found
        tried, most = len(top), most * 8


def _top(numbers: Integers, scores: NDArray[np.float64], most: int) -> Integers:
    """The places of the highest scores, in order: at least `most` of them, and all that are equal to the last."""
    import numpy as np

    if len(scores) > most:
        least = np.partition(scores, len(scores) - most)[len(scores) - most]
        (places,) = np.nonzero(scores >= least)
    else:
        places = np.arange(len(scores))
    return places[np.lexsort((numbers[places], -scores[places]))]
