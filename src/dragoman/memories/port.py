"""The port to what keeps entries, and the values that it speaks of.

Entries belong to a caller and a namespace; nobody sees another caller's. No operation goes through all entries,
however many there are: listing and searching go on where the last page ended instead of counting up to it, and totals
and quotas are kept rather than added up. Only a search for words that are common, and not together, looks at entries
that it does not answer with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Struct

from dragoman.search.words import text_in, words_in

MOST_WORDS = 2000
"""Of one entry, that it can be found by. Each costs time and room, and a megabyte could hold a hundred thousand."""
_PREVIEW = 200
_LARGE = 65_536


class Space(Struct, frozen=True):
    """Whose entries, and which of theirs."""

    owner: str
    namespace: str


class Stored(Struct, frozen=True, rename="camel"):
    """What became of a store."""

    key: str
    created: Annotated[bool, Meta(description="False when an older value was replaced.")]
    bytes: Annotated[int, Meta(description="What the entry counts for in the caller's quota.")]
    updated_at: str


class MemoryEntry(Struct, frozen=True, rename="camel"):
    """A key with its whole value."""

    key: str
    value: Annotated[Any, Meta(description="The JSON value as it was stored.")]
    bytes: int
    updated_at: str


class Item(Struct, frozen=True, rename="camel"):
    """An entry as lists show it."""

    key: str
    preview: Annotated[str, Meta(description=f"The first {_PREVIEW} characters of the value's JSON.")]
    bytes: int
    updated_at: str


class Page(Struct, frozen=True):
    """Entries in the order of their keys, and how many the space has in all."""

    items: tuple[Item, ...]
    has_more: bool
    total: int


class Matches(Struct, frozen=True):
    """Entries, the last stored first, and where the next page begins, if there is one."""

    items: tuple[Item, ...]
    resume: int | None


class Memories(Protocol):
    """Keeps entries. An entry is there for every later call once `store` has returned.

    Every method raises `StorageError`s.
    """

    async def store(self, space: Space, key: str, value: Any) -> Stored:
        """Keep `value` under `key`, in place of what was there; raises `OverQuota`."""
        ...

    async def retrieve(self, space: Space, key: str) -> MemoryEntry | None: ...

    async def list(self, space: Space, limit: int, *, prefix: str = "", after: str | None = None) -> Page:
        """The first keys that begin with `prefix` and come after `after`, by code point."""
        ...

    async def search(self, space: Space, words: Sequence[str], limit: int, *, resume: int | None = None) -> Matches:
        """Entries that have every one of `words`, which are as `words_in` gives them, and at least one."""
        ...

    async def delete(self, space: Space, keys: Sequence[str]) -> int:
        """Forget all of `keys`, or none if that fails; how many there were."""
        ...


class Draft(Struct, frozen=True):
    """An entry made ready for keeping."""

    value: bytes
    words: tuple[str, ...]
    preview: str
    bytes: int


async def draft(space: Space, key: str, value: Any) -> Draft:
    """Encode, measure and index an entry; one that is large, away from the event loop."""
    encoded = msgspec.json.encode(value)
    if len(encoded) < _LARGE:
        return _draft(space, key, value, encoded)
    return await asyncio.to_thread(_draft, space, key, value, encoded)


def _draft(space: Space, key: str, value: Any, encoded: bytes) -> Draft:
    start = encoded[: 4 * _PREVIEW].decode(errors="ignore")
    size = len(key.encode()) + len(space.namespace.encode()) + len(encoded)
    return Draft(encoded, words_in(f"{key}\n{text_in(value)}")[:MOST_WORDS], start[:_PREVIEW], size)
