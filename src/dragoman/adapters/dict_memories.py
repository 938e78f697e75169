"""The `Memories` of a process that keeps nothing: dictionaries, sorted runs and an index of words."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from itertools import count, islice
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.adapters.dict_index import Numbers, SortedRuns, WordTree
from dragoman.clock import Clock
from dragoman.errors import OverQuota
from dragoman.memories.port import Item, Matches, MemoryEntry, Page, Space, Stored, draft

_LETTERS_AT_ONCE = 10_000
_LOOKUPS_AT_ONCE = 10_000
"""What is taken out of an index, or looked up in it, before others get a turn: some milliseconds."""


class _Kept(Struct, frozen=True):
    """An entry, and the number that says when it was stored. All in one: of many, each lies somewhere else."""

    number: int
    key: str
    preview: str
    size: int
    updated_at: str
    words: str
    value: bytes

    @property
    def item(self) -> Item:
        return Item(self.key, self.preview, self.size, self.updated_at)


class _Shelf:
    """The entries of one space."""

    def __init__(self) -> None:
        self.count = count(1)
        self.by_key: dict[str, _Kept] = {}
        self.by_number: dict[int, _Kept] = {}
        self.keys: SortedRuns[str] = SortedRuns()
        self.words = WordTree()
        self.gone: deque[_Kept] = deque()
        """What was removed, and is not found, but has its words in the index still."""

    def put(self, kept: _Kept) -> None:
        """In place of what its key had."""
        replaced = self.by_key.get(kept.key)
        if replaced is None:
            self.keys.add(kept.key)
        else:
            del self.by_number[replaced.number]
            self._unindex(replaced)
        self.by_key[kept.key] = self.by_number[kept.number] = kept
        for word in kept.words.split():
            self.words.add(word, kept.number)

    def remove(self, kept: _Kept) -> None:
        self.keys.take(kept.key)
        del self.by_key[kept.key], self.by_number[kept.number]
        self.gone.append(kept)

    async def forget(self) -> None:
        """Take what is gone out of the index. If this is cancelled, the next one goes on with it."""
        letters = 0
        while self.gone:
            kept = self.gone.popleft()
            self._unindex(kept)
            letters += len(kept.words)
            if letters > _LETTERS_AT_ONCE:
                letters = 0
                await asyncio.sleep(0)

    async def matches(self, words: Sequence[str], end: int, most: int) -> list[_Kept]:
        """The entries that have all the words, from the one before the number `end` down.

        Where others got a turn in between, what they stored is newer than what this began with, and not among them.
        """
        matches: list[_Kept] = []
        at_once = max(_LOOKUPS_AT_ONCE // len(words), 1)
        while (rarest_first := self._find(words)) is not None:
            rarest, *others = rarest_first
            looked_at = 0
            for number in islice(rarest.downwards(end), at_once):
                looked_at, end = looked_at + 1, number
                if all(numbers.has(number) for numbers in others) and number in self.by_number:
                    matches.append(self.by_number[number])
                    if len(matches) == most:
                        return matches
            if looked_at < at_once:
                break
            await asyncio.sleep(0)
        return matches

    def _find(self, words: Sequence[str]) -> list[Numbers] | None:
        found = [numbers for word in words if (numbers := self.words.find(word)) is not None]
        return sorted(found, key=attrgetter("rough_size")) if len(found) == len(words) else None

    def _unindex(self, kept: _Kept) -> None:
        for word in kept.words.split():
            self.words.take(word, kept.number)


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
        growth = entry.bytes - (replaced.size if replaced else 0)
        actual = self._bytes.get(space.owner, 0) + growth
        if actual > self._limit and growth > 0:
            raise OverQuota(self._limit, actual)
        words, now = " ".join(entry.words), self._clock.timestamp()
        shelf.put(_Kept(next(shelf.count), key, entry.preview, entry.bytes, now, words, entry.value))
        self._shelves[space] = shelf
        self._bytes[space.owner] = actual
        return Stored(key, replaced is None, entry.bytes, now)

    async def retrieve(self, space: Space, key: str) -> MemoryEntry | None:
        shelf = self._shelves.get(space)
        kept = shelf and shelf.by_key.get(key)
        if not kept:
            return None
        return MemoryEntry(key, msgspec.json.decode(kept.value), kept.size, kept.updated_at)

    async def list(self, space: Space, limit: int, *, prefix: str = "", after: str | None = None) -> Page:
        shelf = self._shelves.get(space) or _Shelf()
        start = prefix if after is None else max(prefix, f"{after}\0")  # Nothing fits between a text and that.
        keys = [key for key in islice(shelf.keys.upwards(start), limit + 1) if key.startswith(prefix)]
        items = tuple([shelf.by_key[key].item for key in keys[:limit]])
        return Page(items, len(keys) > limit, len(shelf.by_key))

    async def search(self, space: Space, words: Sequence[str], limit: int, *, resume: int | None = None) -> Matches:
        shelf = self._shelves.get(space) or _Shelf()
        found = await shelf.matches(words, sys.maxsize if resume is None else resume, limit + 1)
        items = tuple([kept.item for kept in found[:limit]])
        return Matches(items, found[limit - 1].number if len(found) > limit else None)

    async def delete(self, space: Space, keys: Sequence[str]) -> int:
        shelf = self._shelves.get(space) or _Shelf()
        found = [shelf.by_key[key] for key in dict.fromkeys(keys) if key in shelf.by_key]
        for kept in found:
            shelf.remove(kept)
            self._bytes[space.owner] -= kept.size
        if found and not shelf.by_key:  # Spaces and owners that have nothing left leave nothing behind.
            del self._shelves[space]
            shelf.gone.clear()
            if not self._bytes[space.owner]:
                del self._bytes[space.owner]
        await shelf.forget()
        return len(found)
