"""The `Memories` of a process that keeps nothing: dictionaries, sorted lists and an index of words."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.clock import Clock
from dragoman.tools.builtin.memory import Draft, Entry, Item, Matches, Page, Space, Stored, draft, over_quota
from dragoman.tools.words import beginnings_of


class _Kept(Struct, frozen=True):
    """An entry, and the number that says when it was stored."""

    number: int
    key: str
    draft: Draft
    updated_at: str

    def item(self) -> Item:
        return Item(self.key, self.draft.preview, self.draft.bytes, self.updated_at)


class _Shelf:
    """The entries of one space.

    Lists are kept sorted. To insert into one or to remove from it moves what comes after, which for 100,000 entries
    takes some microseconds.
    """

    def __init__(self) -> None:
        self.by_key: dict[str, _Kept] = {}
        self.by_number: dict[int, _Kept] = {}
        self.keys: list[str] = []
        self.numbers: dict[str, list[int]] = {}
        """The numbers of the entries that a word finds."""

    def add(self, kept: _Kept) -> None:
        insort(self.keys, kept.key)
        self.by_key[kept.key] = kept
        self.by_number[kept.number] = kept
        for term in _terms(kept.draft):
            self.numbers.setdefault(term, []).append(kept.number)

    def remove(self, kept: _Kept) -> None:
        del self.keys[bisect_left(self.keys, kept.key)]
        del self.by_key[kept.key]
        del self.by_number[kept.number]
        for term in _terms(kept.draft):
            numbers = self.numbers[term]
            del numbers[bisect_left(numbers, kept.number)]
            if not numbers:
                del self.numbers[term]

    def matches(self, words: Sequence[str], before: int | None) -> Iterator[int]:
        """The numbers, from the highest down, of entries that have all the words."""
        rarest, *others = sorted((self.numbers.get(word, []) for word in words), key=len)
        end = len(rarest) if before is None else bisect_left(rarest, before)
        for place in range(end - 1, -1, -1):
            number = rarest[place]
            if all(_has(numbers, number) for numbers in others):
                yield number


class DictMemories:
    """Keeps entries while the process lives, `max_bytes_per_owner` of each owner's at the most. For one event loop."""

    def __init__(self, max_bytes_per_owner: int, clock: Clock) -> None:
        self._limit = max_bytes_per_owner
        self._clock = clock
        self._bytes: dict[str, int] = {}
        self._shelves: dict[Space, _Shelf] = {}
        self._numbers = count(1)

    async def store(self, space: Space, key: str, value: Any) -> Stored:
        entry = await draft(space, key, value)
        shelf = self._shelves.get(space) or _Shelf()
        replaced = shelf.by_key.get(key)
        growth = entry.bytes - (replaced.draft.bytes if replaced else 0)
        actual = self._bytes.get(space.owner, 0) + growth
        if actual > self._limit and growth > 0:
            raise over_quota(self._limit, actual)
        if replaced:
            shelf.remove(replaced)
        kept = _Kept(next(self._numbers), key, entry, self._clock.timestamp())
        shelf.add(kept)
        self._shelves[space] = shelf
        self._bytes[space.owner] = actual
        return Stored(key, replaced is None, entry.bytes, kept.updated_at)

    async def retrieve(self, space: Space, key: str) -> Entry | None:
        shelf = self._shelves.get(space)
        kept = shelf and shelf.by_key.get(key)
        if not kept:
            return None
        return Entry(key, msgspec.json.decode(kept.draft.value), kept.draft.bytes, kept.updated_at)

    async def list(self, space: Space, limit: int, *, prefix: str = "", after: str | None = None) -> Page:
        shelf = self._shelves.get(space) or _Shelf()
        start = bisect_left(shelf.keys, prefix)
        if after is not None:
            start = max(start, bisect_right(shelf.keys, after))
        keys = [key for key in shelf.keys[start : start + limit + 1] if key.startswith(prefix)]
        items = tuple(shelf.by_key[key].item() for key in keys[:limit])
        return Page(items, len(keys) > limit, len(shelf.keys))

    async def search(self, space: Space, words: Sequence[str], limit: int, *, resume: int | None = None) -> Matches:
        shelf = self._shelves.get(space) or _Shelf()
        numbers = tuple(islice(shelf.matches(words, resume), limit + 1))
        items = tuple(shelf.by_number[number].item() for number in numbers[:limit])
        return Matches(items, numbers[limit - 1] if len(numbers) > limit else None)

    async def delete(self, space: Space, keys: Sequence[str]) -> int:
        shelf = self._shelves.get(space) or _Shelf()
        found = [shelf.by_key[key] for key in dict.fromkeys(keys) if key in shelf.by_key]
        for kept in found:
            shelf.remove(kept)
            self._bytes[space.owner] -= kept.draft.bytes
        if found and not shelf.keys:  # Spaces and owners that have nothing left leave nothing behind.
            del self._shelves[space]
            if not self._bytes[space.owner]:
                del self._bytes[space.owner]
        return len(found)

    async def close(self) -> None:
        """There is nothing to finish."""


def _terms(entry: Draft) -> set[str]:
    return {term for word in entry.words for term in beginnings_of(word)}


def _has(numbers: Sequence[int], number: int) -> bool:
    place = bisect_left(numbers, number)
    return place < len(numbers) and numbers[place] == number
