"""The `memory_*` tools: what a caller wants to find again, and the port to wherever that is kept.

Entries belong to a caller and a namespace; nobody sees another caller's. No operation goes through all entries,
however many there are: listing and searching go on where the last page ended instead of counting up to it, and totals
and quotas are kept rather than added up. Only a search for words that are common, and not together, looks at entries
that it does not answer with. Nothing is taken that could not be given back in one answer.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Annotated, Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from dragoman.errors import InvalidArgument, NotFound, ResourceExhausted
from dragoman.search.words import text_in, words_in
from dragoman.tools.context import ToolContext
from dragoman.tools.pages import ANSWER_FRAME, weight_in_answer
from dragoman.tools.tool import Tool, tool, tool_of

MOST_KEYS = 1000
MOST_WORDS = 2000
"""Of one entry, that it can be found by. Each costs time and room, and a megabyte could hold a hundred thousand."""
MOST_ITEMS = 100
DEFAULT_ITEMS = 20
DEFAULT_NAMESPACE = "default"
_PREVIEW = 200
_LARGE = 65_536
_HIGHEST = 2**63 - 1

# What the port speaks of.


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


class Entry(Struct, frozen=True, rename="camel"):
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
    """Keeps entries. What has been stored when `store` returns is there for every later call."""

    async def store(self, space: Space, key: str, value: Any) -> Stored:
        """Keep `value` under `key`, in place of what was there; raises what `over_quota` makes."""
        ...

    async def retrieve(self, space: Space, key: str) -> Entry | None: ...

    async def list(self, space: Space, limit: int, *, prefix: str = "", after: str | None = None) -> Page:
        """The first keys that begin with `prefix` and come after `after`, by code point."""
        ...

    async def search(self, space: Space, words: Sequence[str], limit: int, *, resume: int | None = None) -> Matches:
        """Entries that have every one of `words`, which are as `words_in` gives them, and at least one."""
        ...

    async def delete(self, space: Space, keys: Sequence[str]) -> int:
        """Forget all of `keys`, or none if that fails; how many there were."""
        ...

    async def close(self) -> None:
        """Finish what has been asked for."""
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


def over_quota(limit: int, actual: int) -> ResourceExhausted:
    """What to say to a caller that would keep `actual` bytes."""
    return ResourceExhausted(
        f"This would make {actual} bytes, and at most {limit} are kept for a caller; delete something first",
        {"reason": "storage_quota", "limit": limit, "actual": actual, "retryable": False},
    )


# Cursors: opaque to clients, checked when they come back.


class _ListCursor(Struct, frozen=True, array_like=True, tag="list", forbid_unknown_fields=True):
    offset: Annotated[int, Meta(ge=0, le=_HIGHEST)]
    after: str


class _SearchCursor(Struct, frozen=True, array_like=True, tag="search", forbid_unknown_fields=True):
    resume: Annotated[int, Meta(ge=0, le=_HIGHEST)]


_Cursor = TypeVar("_Cursor", _ListCursor, _SearchCursor)


def _written(cursor: _ListCursor | _SearchCursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode()


def _read(cursor: str, kind: type[_Cursor]) -> _Cursor:
    try:
        return msgspec.json.decode(base64.b64decode(cursor, b"-_", validate=True), type=kind)
    except (msgspec.DecodeError, ValueError):
        raise InvalidArgument(
            "The cursor is not one that this tool gave out; leave it away to begin anew", {"reason": "invalid_cursor"}
        ) from None


# What the tools answer.


class Listing(Struct, frozen=True, rename="camel"):
    """A page of entries by key."""

    items: tuple[Item, ...]
    limit: int
    offset: Annotated[int, Meta(description="How many entries came before this page.")]
    has_more: bool
    total: (
        Annotated[int, Meta(description="Entries in the namespace; left out when a prefix was given.")] | UnsetType
    ) = UNSET
    next_cursor: Annotated[str, Meta(description="Pass it on to get the next page.")] | UnsetType = UNSET


class Found(Struct, frozen=True, rename="camel"):
    """A page of entries that match, the last stored first."""

    items: tuple[Item, ...]
    limit: int
    has_more: bool
    next_cursor: Annotated[str, Meta(description="Pass it on to get the next page.")] | UnsetType = UNSET


class Deleted(Struct, frozen=True):
    """Whether there was something to delete."""

    deleted: bool


class DeletedCount(Struct, frozen=True):
    """How many of the keys there were."""

    deleted: int


_Name = Annotated[str, Meta(min_length=1, max_length=256)]
Key = Annotated[_Name, Meta(description="What the entry is called.")]
Namespace = Annotated[_Name, Meta(description="Keeps entries apart that have nothing to do with each other.")]
Limit = Annotated[int, Meta(ge=1, le=MOST_ITEMS, description="The most entries to answer with.")]
Cursor = Annotated[str, Meta(max_length=4096, description="The `nextCursor` of the page before.")]


def memory_tools(memories: Memories, most_bytes: int | None = None) -> tuple[Tool, ...]:
    """The six tools, which keep their entries in `memories`.

    Where no answer may weigh more than `most_bytes`, nothing is taken that could not be read back.
    """

    @tool(category="mutation", destructive=True, idempotent=True, open_world=False)
    async def memory_store(
        key: Key,
        value: Annotated[Any, Meta(description="Any JSON value.")],
        context: ToolContext,
        namespace: Namespace = DEFAULT_NAMESPACE,
    ) -> Stored:
        """Keeps a JSON value under a key, for later; nobody but you can read it back.

        A value that is there under this key already is replaced.
        """
        if most_bytes is not None:
            _check_readable(key, value, most_bytes)
        return await memories.store(Space(context.caller.principal, namespace), key, value)

    @tool(category="query", read_only=True, idempotent=True, open_world=False)
    async def memory_retrieve(key: Key, context: ToolContext, namespace: Namespace = DEFAULT_NAMESPACE) -> Entry:
        """Reads back the value that was stored under a key. An unknown key is an error, NOT_FOUND."""
        entry = await memories.retrieve(Space(context.caller.principal, namespace), key)
        if entry is None:
            raise NotFound("Nothing is stored under this key", {"reason": "unknown_key"})
        return entry

    @tool(category="query", read_only=True, idempotent=True, open_world=False)
    async def memory_search(
        query: Annotated[str, Meta(min_length=1, max_length=256, description="One or more words.")],
        context: ToolContext,
        namespace: Namespace = DEFAULT_NAMESPACE,
        limit: Limit = DEFAULT_ITEMS,
        cursor: Cursor | None = None,
    ) -> Found:
        """Finds stored entries by words, the last stored first.

        An entry is found when it has every word of the query, in its key or in the strings and numbers of its value
        (the names of object members do not count). Case and accents do not matter, and a word of three letters or more
        also finds longer words that begin with it. Of a very long entry only the first 2,000 different words count.
        Answers with previews: read whole values with memory_retrieve.
        """
        words = words_in(query)
        if not words:
            raise InvalidArgument("The query has no word to look for", {"reason": "no_words"})
        resume = _read(cursor, _SearchCursor).resume if cursor is not None else None
        matches = await memories.search(Space(context.caller.principal, namespace), words, limit, resume=resume)
        following = matches.resume
        return Found(
            matches.items,
            limit,
            following is not None,
            UNSET if following is None else _written(_SearchCursor(following)),
        )

    @tool(category="query", read_only=True, idempotent=True, open_world=False)
    async def memory_list(
        context: ToolContext,
        namespace: Namespace = DEFAULT_NAMESPACE,
        prefix: Annotated[str, Meta(max_length=256, description="Only keys that begin with it.")] = "",
        limit: Limit = DEFAULT_ITEMS,
        cursor: Cursor | None = None,
    ) -> Listing:
        """Lists stored entries in the order of their keys, a page at a time.

        Answers with previews: read whole values with memory_retrieve.
        """
        start = _ListCursor(0, "") if cursor is None else _read(cursor, _ListCursor)
        page = await memories.list(
            Space(context.caller.principal, namespace), limit, prefix=prefix, after=start.after if cursor else None
        )
        return _listing(page, limit, start.offset, is_filtered=bool(prefix))

    @tool(category="mutation", destructive=True, idempotent=True, open_world=False)
    async def memory_delete(key: Key, context: ToolContext, namespace: Namespace = DEFAULT_NAMESPACE) -> Deleted:
        """Deletes the entry of a key. To delete what is not there is no error."""
        return Deleted(await memories.delete(Space(context.caller.principal, namespace), (key,)) > 0)

    @tool(destructive=True, idempotent=True, open_world=False)
    async def memory_bulk_delete(
        keys: Annotated[list[Key], Meta(min_length=1, max_length=MOST_KEYS)],
        context: ToolContext,
        namespace: Namespace = DEFAULT_NAMESPACE,
    ) -> DeletedCount:
        """Deletes the entries of many keys, all together or not at all; says how many of them there were."""
        return DeletedCount(await memories.delete(Space(context.caller.principal, namespace), keys))

    made = (memory_store, memory_retrieve, memory_search, memory_list, memory_delete, memory_bulk_delete)
    return tuple(tool_of(each) for each in made)


def _check_readable(key: str, value: Any, limit: int) -> None:
    """Raise `ResourceExhausted` for what `memory_retrieve` could not answer with."""
    weight = weight_in_answer(Entry(key, value, _HIGHEST, "0000-00-00T00:00:00.000Z")) + ANSWER_FRAME
    if weight > limit:
        raise ResourceExhausted(
            f"To read this back would take {weight} bytes, and at most {limit} are sent; store it in parts",
            {"reason": "value_too_large", "limit": limit, "actual": weight, "retryable": False},
        )


def _listing(page: Page, limit: int, offset: int, *, is_filtered: bool) -> Listing:
    """The answer to a list, in which `hasMore` is exactly `offset + len(items) < total`.

    The offset comes with the cursor. If entries before it came or went in the meantime it is no longer right, and is
    set right where this page shows it to be wrong: the last page ends at the total, and the others end before it.
    """
    count = len(page.items)
    if not is_filtered:
        offset = min(offset, page.total - count - 1) if page.has_more else page.total - count
    return Listing(
        page.items,
        limit,
        offset,
        page.has_more,
        UNSET if is_filtered else page.total,
        _written(_ListCursor(offset + count, page.items[-1].key)) if page.has_more else UNSET,
    )
