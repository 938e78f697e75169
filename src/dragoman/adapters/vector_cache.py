"""Vectors in memory, scored exactly.

1. The cached vectors of a tenant follow the table: only newer rows are read. Vectors that are gone stay
   until there are many of them; whoever searches asks the table whether what was found is still there. It asks by the
   number of the vector, as that of a passage may be another one's by now, even another tenant's.
2. All that is kept has at most `max_bytes`. The tenant that was not searched for the longest time is dropped first; of
   one that has more vectors than that, the rest is read from the table for each search, piece by piece.
3. NumPy is imported when the first vector is searched for.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float32]
    Integers: TypeAlias = NDArray[np.int64]
    Scored: TypeAlias = tuple[Integers, Integers, Floats]

VectorKey: TypeAlias = tuple[int, int, int]
"""Tenant, model, and the bytes of a vector."""
VectorRow: TypeAlias = tuple[int, int, bytes]
"""The vector's number, which ascends with the time and is never used again, the passage's number, and the vector."""
ReadNewer: TypeAlias = Callable[[int], Iterable[VectorRow]]
"""The rows behind a number, in ascending order."""

_FEWEST_ROWS, _ROWS_AT_ONCE, _ROWS_OF_A_PIECE = 64, 512, 4096
_GROWTH = 1.25
_DIGITS = 6
"""Of a score: further ones depend on which vectors are multiplied together."""
_NUMBER_BYTES = 16


class _Matrix:
    """Vectors below each other, with room for more."""

    def __init__(self, rows: int, dimensions: int) -> None:
        import numpy as np

        self.numbers: Integers = np.empty(rows, np.int64)
        self.passages: Integers = np.empty(rows, np.int64)
        self.vectors: Floats = np.empty((rows, dimensions), np.float32)
        self.used = 0

    @property
    def room(self) -> int:
        return len(self.numbers) - self.used

    def add(self, rows: list[VectorRow]) -> None:
        import numpy as np

        end = self.used + len(rows)
        self.numbers[self.used : end] = [number for number, _, _ in rows]
        self.passages[self.used : end] = [passage for _, passage, _ in rows]
        joined = b"".join([vector for _, _, vector in rows])
        self.vectors[self.used : end] = np.frombuffer(joined, "<f4").reshape(len(rows), -1)
        self.used = end

    def grown(self, rows: int) -> _Matrix:
        """A copy with more room; whoever scores this one goes on."""
        copy = _Matrix(rows, self.vectors.shape[1])
        copy.numbers[: self.used] = self.numbers[: self.used]
        copy.passages[: self.used] = self.passages[: self.used]
        copy.vectors[: self.used] = self.vectors[: self.used]
        copy.used = self.used
        return copy

    def filled(self) -> tuple[Integers, Integers, Floats]:
        """The rows that are filled now."""
        return self.numbers[: self.used], self.passages[: self.used], self.vectors[: self.used]


class _Kept:
    """The vectors of one tenant and model."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.matrix: _Matrix | None = None
        self.bytes = 0
        self.last = 0


class VectorCache:
    """The vectors of a process. For any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[VectorKey, _Kept] = OrderedDict()
        self._bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._bytes

    def count(self, key: VectorKey) -> int:
        """How many vectors are kept of a tenant and model, with those that are gone."""
        kept = self._kept.get(key)
        return kept.matrix.used if kept and kept.matrix else 0

    def forget(self, key: VectorKey) -> None:
        """Read the vectors of a tenant and model anew when they are searched again."""
        with self._lock:
            gone = self._kept.pop(key, None)
            if gone is not None:
                self._bytes -= gone.bytes

    def scores(self, key: VectorKey, vector: bytes, read_newer: ReadNewer, expected: int = 0) -> Iterator[Scored]:
        """The numbers of vectors and their passages, and the scores, in pieces; about so many are `expected`."""
        import numpy as np

        if len(vector) % 4 or not vector:
            return
        query = np.frombuffer(vector, "<f4")
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
        with kept.lock:
            rest = self._follow(key, kept, iter(read_newer(kept.last)), expected)
            filled = kept.matrix.filled() if kept.matrix else None
        if filled:
            numbers, passages, vectors = filled
            yield numbers, passages, vectors @ query
        while rows := [*islice(rest, _ROWS_OF_A_PIECE)]:
            piece = _Matrix(len(rows), len(query))
            piece.add(rows)
            yield piece.numbers, piece.passages, piece.vectors @ query

    def _follow(self, key: VectorKey, kept: _Kept, rows: Iterator[VectorRow], expected: int) -> Iterator[VectorRow]:
        """Keep what was stored since, as far as there is room; what is left over."""
        waiting: list[VectorRow] = []
        while waiting := waiting or [*islice(rows, _ROWS_AT_ONCE)]:
            if not (kept.matrix and kept.matrix.room):
                self._make_room(key, kept, expected)
            matrix = kept.matrix
            if matrix is None or not matrix.room:
                break
            fitting, waiting = waiting[: matrix.room], waiting[matrix.room :]
            matrix.add(fitting)
            kept.last = fitting[-1][0]
        return chain(waiting, rows)

    def _make_room(self, key: VectorKey, kept: _Kept, expected: int) -> None:
        """As much as there is, up to what is likely to be needed; others that were not used for longer give theirs."""
        used = kept.matrix.used if kept.matrix else 0
        wanted = int(max(used, expected, _FEWEST_ROWS) * (_GROWTH if used else 1))
        row = key[2] + _NUMBER_BYTES
        with self._lock:
            if self._kept.get(key) is not kept:
                return  # It was dropped meanwhile, and its bytes are another's.
            while self._bytes - kept.bytes + wanted * row > self._max_bytes and next(iter(self._kept)) != key:
                self._bytes -= self._kept.popitem(last=False)[1].bytes
            rows = min(wanted, (self._max_bytes - self._bytes + kept.bytes) // row)
            if rows <= used:
                return
            self._bytes += rows * row - kept.bytes
            kept.bytes = rows * row
        kept.matrix = kept.matrix.grown(rows) if kept.matrix else _Matrix(rows, key[2] // 4)


def best(
    scored: Iterable[Scored],
    limit: int,
    may_find: Callable[[Integers], Any],
    those_there: Callable[[list[int]], Collection[int]],
) -> list[tuple[int, float]]:
    """The passages with the highest scores, the lower number first where these are equal.

    `may_find` makes a mask of passages; `those_there` says which of some vectors are still there.
    """
    import numpy as np

    pieces = [*scored]
    if not pieces or limit < 1:
        return []
    numbers, passages, scores = pieces[0] if len(pieces) == 1 else map(np.concatenate, zip(*pieces, strict=True))
    chosen = may_find(passages)
    numbers, passages, scores = numbers[chosen], passages[chosen], scores[chosen]
    found: list[tuple[int, float]] = []
    tried, most = 0, limit
    while True:
        top = _top(numbers, passages, scores, most)
        there = those_there([number for number, _, _ in top[tried:]])
        found += [(passage, score) for number, passage, score in top[tried:] if number in there]
        if len(found) >= limit or len(top) == len(numbers):
            return found[:limit]
        tried, most = len(top), most * 8


def _top(numbers: Integers, passages: Integers, scores: Floats, most: int) -> list[tuple[int, int, float]]:
    """The highest scores, in order: at least `most` of them, and all that are equal to the last."""
    import numpy as np

    if len(scores) > most:
        least = np.partition(scores, len(scores) - most)[len(scores) - most]
        (places,) = np.nonzero(scores >= least - 10.0**-_DIGITS)
        numbers, passages, scores = numbers[places], passages[places], scores[places]
    rounded = np.round(scores.astype(np.float64), _DIGITS)
    order = np.lexsort((passages, -rounded))
    return [*zip(numbers[order].tolist(), passages[order].tolist(), rounded[order].tolist(), strict=True)]
