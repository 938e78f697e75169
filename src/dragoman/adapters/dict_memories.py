"""The `Memories` of a process that keeps nothing: dictionaries, sorted runs and an index of words."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, MutableSequence, Sequence
from itertools import count, islice
from operator import itemgetter
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from dragoman.clock import Clock
from dragoman.tools.builtin.memory import Draft, Entry, Item, Matches, Page, Space, Stored, draft, over_quota
from dragoman.tools.words import beginnings_of

T = TypeVar("T", str, int)

LONGEST_RUN = 1000
_first = itemgetter(0)


class _Kept(Struct, frozen=True):
    """An entry, and the number that says when it was stored."""

    number: int
    item: Item
    draft: Draft


class Runs(list[MutableSequence[T]]):
    """Different values in ascending order, in runs of which none is empty: what comes or goes moves only its run.

    While there are none, only `add` and `upwards` make sense.
    """

    def add(self, value: T) -> None:
        if not self:
            self.append([])
        at = self._run_of(value)
        run = self[at]
        run.insert(bisect_left(run, value), value)
        if len(run) > LONGEST_RUN:
            self.insert(at + 1, run[LONGEST_RUN // 2 :])
            del run[LONGEST_RUN // 2 :]

    def take(self, value: T) -> None:
        """It has to be there."""
        at = self._run_of(value)
        run = self[at]
        del run[bisect_left(run, value)]
        if not run:
            del self[at]

    def upwards(self, start: T) -> Iterator[T]:
        """From `start` on."""
        for at in range(self._run_of(start), len(self)):
            run = self[at]
            for place in range(bisect_left(run, start), len(run)):
                yield run[place]

    def downwards(self, end: T | None) -> Iterator[T]:
        """From the one before `end`, or from the last."""
        for at in range(len(self) - 1 if end is None else self._run_of(end), -1, -1):
            run = self[at]
            for place in range((len(run) if end is None else bisect_left(run, end)) - 1, -1, -1):
                yield run[place]

    def has(self, value: T) -> bool:
        run = self[self._run_of(value)]
        place = bisect_left(run, value)
        return place < len(run) and run[place] == value

    def _run_of(self, value: T) -> int:
        """The last that does not begin beyond it, or the first."""
        return bisect_right(self, value, 1, key=_first) - 1 if len(self) > 1 else 0


class _Shelf:
    """The entries of one space."""

    def __init__(self) -> None:
        self.count = count(1)
        self.by_key: dict[str, _Kept] = {}
        self.by_number: dict[int, _Kept] = {}
        self.keys: Runs[str] = Runs()
        self.numbers: dict[str, Runs[int]] = {}
        """The numbers of the entries that a word finds."""

    def put(self, kept: _Kept) -> None:
        """In place of what its key had."""
        key = kept.item.key
        replaced = self.by_key.get(key)
        if replaced is None:
            self.keys.add(key)
        else:
            self._forget(replaced)
        self.by_key[key] = kept
        self.by_number[kept.number] = kept
        for term in _terms(kept.draft):
            # What is stored last has the highest number. Not `add`: there are many terms, and most of them are rare.
            runs = self.numbers.get(term)
            if runs is None:
                self.numbers[term] = Runs((_run(kept.number),))
            elif len(runs[-1]) < LONGEST_RUN:
                runs[-1].append(kept.number)
            else:
                runs.append(_run(kept.number))

    def remove(self, kept: _Kept) -> None:
        self.keys.take(kept.item.key)
        del self.by_key[kept.item.key]
        self._forget(kept)

    def matches(self, words: Sequence[str], before: int | None) -> Iterator[int]:
        """The numbers, from the highest down, of entries that have all the words."""
        found = [self.numbers[word] for word in words if word in self.numbers]
        if len(found) < len(words):
            return
        rarest, *others = sorted(found, key=lambda runs: (len(runs), len(runs[0])))  # Roughly: nothing is added up.
        for number in rarest.downwards(before):
            if all(runs.has(number) for runs in others):
                yield number

    def _forget(self, kept: _Kept) -> None:
        del self.by_number[kept.number]
        for term in _terms(kept.draft):
            runs = self.numbers[term]
            if len(runs) > 1:
                runs.take(kept.number)
                continue
            run = runs[0]
            del run[bisect_left(run, kept.number)]
            if not run:
                del self.numbers[term]


class DictMemories:
    """Keeps entries while the process lives, `max_bytes_per_owner` of each owner's at the most. For one event loop."""

    def __init__(self, max_bytes_per_owner: int, clock: Clock) -> None:
        self._limit = max_bytes_per_owner
        self._clock = clock
        self._bytes: dict[str, int] = {}
        self._shelves: dict[Space, _Shelf] = {}

    async def store(self, space: Space, key: str, value: Any) -> Stored:
        entry = await draft(space, key, value)
        shelf = self._shelves.get(space) or _Shelf()
        replaced = shelf.by_key.get(key)
        growth = entry.bytes - (replaced.draft.bytes if replaced else 0)
        actual = self._bytes.get(space.owner, 0) + growth
        if actual > self._limit and growth > 0:
            raise over_quota(self._limit, actual)
        item = Item(key, entry.preview, entry.bytes, self._clock.timestamp())
        shelf.put(_Kept(next(shelf.count), item, entry))
        self._shelves[space] = shelf
        self._bytes[space.owner] = actual
        return Stored(key, replaced is None, entry.bytes, item.updated_at)

    async def retrieve(self, space: Space, key: str) -> Entry | None:
        shelf = self._shelves.get(space)
        kept = shelf and shelf.by_key.get(key)
        if not kept:
            return None
        return Entry(key, msgspec.json.decode(kept.draft.value), kept.item.bytes, kept.item.updated_at)

    async def list(self, space: Space, limit: int, *, prefix: str = "", after: str | None = None) -> Page:
        shelf = self._shelves.get(space) or _Shelf()
        start = prefix if after is None else max(prefix, f"{after}\0")  # Nothing fits between a text and that.
        keys = [key for key in islice(shelf.keys.upwards(start), limit + 1) if key.startswith(prefix)]
        items = tuple([shelf.by_key[key].item for key in keys[:limit]])
        return Page(items, len(keys) > limit, len(shelf.by_key))

    async def search(self, space: Space, words: Sequence[str], limit: int, *, resume: int | None = None) -> Matches:
        shelf = self._shelves.get(space) or _Shelf()
        numbers = tuple(islice(shelf.matches(words, resume), limit + 1))
        items = tuple(shelf.by_number[number].item for number in numbers[:limit])
        return Matches(items, numbers[limit - 1] if len(numbers) > limit else None)

    async def delete(self, space: Space, keys: Sequence[str]) -> int:
        shelf = self._shelves.get(space) or _Shelf()
        found = [shelf.by_key[key] for key in dict.fromkeys(keys) if key in shelf.by_key]
        for kept in found:
            shelf.remove(kept)
            self._bytes[space.owner] -= kept.draft.bytes
        if found and not shelf.by_key:  # Spaces and owners that have nothing left leave nothing behind.
            del self._shelves[space]
            if not self._bytes[space.owner]:
                del self._bytes[space.owner]
        return len(found)

    async def close(self) -> None:
        """There is nothing to finish."""


def _run(number: int) -> array[int]:
    """Not a list: among many entries, it is where the numbers are that takes the time, and a list's are anywhere."""
    return array("q", (number,))


def _terms(entry: Draft) -> set[str]:
    return {term for word in entry.words for term in beginnings_of(word)}
