"""The `memory_*` tools. Nothing is taken that could not be given back in one answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import Annotated, Any, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from dragoman.errors import InvalidArgument, NotFound, ResourceExhausted
from dragoman.memories.cursors import HIGHEST, ListCursor, SearchCursor, read_cursor, write_cursor
from dragoman.memories.port import Item, Memories, MemoryEntry, Page, Space, Stored
from dragoman.search.words import words_in
from dragoman.tools.context import ToolContext
from dragoman.tools.pages import ANSWER_FRAME, weight_in_answer
from dragoman.tools.storage_errors import words_storage_errors
from dragoman.tools.tool import Tool, make_tool

MOST_KEYS = 1000
MOST_ITEMS = 100
DEFAULT_ITEMS = 20
DEFAULT_NAMESPACE = "default"


_Truncated = Annotated[
    bool, Meta(description="Whether the page has fewer entries than `limit` allows, as an answer must not weigh more.")
]


class MemoryListing(Struct, frozen=True, rename="camel"):
    """A page of entries by key."""

    items: tuple[Item, ...]
    limit: int
    offset: Annotated[int, Meta(description="How many entries came before this page.")]
    has_more: bool
    truncated: _Truncated
    total: (
        Annotated[int, Meta(description="Entries in the namespace; left out when a prefix was given.")] | UnsetType
    ) = UNSET
    next_cursor: Annotated[str, Meta(description="Pass it on to get the next page.")] | UnsetType = UNSET


class Found(Struct, frozen=True, rename="camel"):
    """A page of entries that match, the last stored first."""

    items: tuple[Item, ...]
    limit: int
    has_more: bool
    truncated: _Truncated
    next_cursor: Annotated[str, Meta(description="Pass it on to get the next page.")] | UnsetType = UNSET


class Deleted(Struct, frozen=True):
    """Whether there was something to delete."""

    deleted: bool


class DeletedCount(Struct, frozen=True):
    """How many of the keys there were."""

    deleted: int


P = TypeVar("P", MemoryListing, Found)
_Name = Annotated[str, Meta(min_length=1, max_length=256)]
EntryKey = Annotated[_Name, Meta(description="What the entry is called.")]
Namespace = Annotated[_Name, Meta(description="Keeps entries apart that have nothing to do with each other.")]
Limit = Annotated[int, Meta(ge=1, le=MOST_ITEMS, description="The most entries to answer with.")]
Cursor = Annotated[str, Meta(max_length=4096, description="The `nextCursor` of the page before.")]


class MemoryTools:
    """The handlers of the six tools, which keep their entries in `memories`.

    Where no answer may weigh more than `most_bytes`, nothing is taken that could not be read back, and pages have no
    more entries than an answer has room for.
    """

    def __init__(self, memories: Memories, most_bytes: int | None = None) -> None:
        self._memories = memories
        self._most_bytes = most_bytes

    async def memory_store(
        self,
        key: EntryKey,
        value: Annotated[Any, Meta(description="Any JSON value.")],
        context: ToolContext,
        namespace: Namespace = DEFAULT_NAMESPACE,
    ) -> Stored:
        """Keeps a JSON value under a key, for later; nobody but you can read it back.

        A value that is there under this key already is replaced.
        """
        if self._most_bytes is not None:
            _check_readable(key, value, self._most_bytes)
        return await self._memories.store(_space(context, namespace), key, value)

    async def memory_retrieve(
        self, key: EntryKey, context: ToolContext, namespace: Namespace = DEFAULT_NAMESPACE
    ) -> MemoryEntry:
        """Reads back the value that was stored under a key. An unknown key is an error, NOT_FOUND."""
        entry = await self._memories.retrieve(_space(context, namespace), key)
        if entry is None:
            raise NotFound("Nothing is stored under this key", {"reason": "unknown_key"})
        return entry

    async def memory_search(
        self,
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
        resume = read_cursor(cursor, SearchCursor).resume if cursor is not None else None

        async def answer(most: int) -> Found:
            matches = await self._memories.search(_space(context, namespace), words, most, resume=resume)
            following = matches.resume
            return Found(
                matches.items,
                limit,
                following is not None,
                following is not None and most < limit,
                UNSET if following is None else write_cursor(SearchCursor(following)),
            )

        return await self._cut(answer, limit)

    async def memory_list(
        self,
        context: ToolContext,
        namespace: Namespace = DEFAULT_NAMESPACE,
        prefix: Annotated[str, Meta(max_length=256, description="Only keys that begin with it.")] = "",
        limit: Limit = DEFAULT_ITEMS,
        cursor: Cursor | None = None,
    ) -> MemoryListing:
        """Lists stored entries in the order of their keys, a page at a time.

        Answers with previews: read whole values with memory_retrieve.
        """
        start = ListCursor(0, "") if cursor is None else read_cursor(cursor, ListCursor)

        async def answer(most: int) -> MemoryListing:
            after = start.after if cursor else None
            page = await self._memories.list(_space(context, namespace), most, prefix=prefix, after=after)
            return _listing(page, limit, start.offset, is_filtered=bool(prefix), is_cut=most < limit)

        return await self._cut(answer, limit)

    async def memory_delete(
        self, key: EntryKey, context: ToolContext, namespace: Namespace = DEFAULT_NAMESPACE
    ) -> Deleted:
        """Deletes the entry of a key. To delete what is not there is no error."""
        return Deleted(await self._memories.delete(_space(context, namespace), (key,)) > 0)

    async def memory_bulk_delete(
        self,
        keys: Annotated[list[EntryKey], Meta(min_length=1, max_length=MOST_KEYS)],
        context: ToolContext,
        namespace: Namespace = DEFAULT_NAMESPACE,
    ) -> DeletedCount:
        """Deletes the entries of many keys, all together or not at all; says how many of them there were."""
        return DeletedCount(await self._memories.delete(_space(context, namespace), keys))

    async def _cut(self, make: Callable[[int], Awaitable[P]], limit: int) -> P:
        """The answer with at most `limit` entries, or with as many as an answer has room for: one at least."""
        answer = await make(limit)
        if self._most_bytes is None:
            return answer
        room = self._most_bytes - ANSWER_FRAME
        while (weight := weight_in_answer(answer)) > room and len(answer.items) > 1:
            weights = [weight_in_answer(item) for item in answer.items]
            room_of_items = room - (weight - sum(weights))
            fit = sum(total <= room_of_items for total in accumulate(weights))
            answer = await make(min(max(1, fit), len(answer.items) - 1))
        if weight > room:  # The key alone may be most of it.
            items = tuple(replace(item, preview="") for item in answer.items)
            answer = replace(answer, items=items, truncated=True)
        return answer


def memory_tools(memories: Memories, most_bytes: int | None = None) -> tuple[Tool, ...]:
    """The six tools of `MemoryTools`."""
    handlers = MemoryTools(memories, most_bytes)
    return (
        _changing(handlers.memory_store, category="mutation"),
        _reading(handlers.memory_retrieve),
        _reading(handlers.memory_search),
        _reading(handlers.memory_list),
        _changing(handlers.memory_delete, category="mutation"),
        _changing(handlers.memory_bulk_delete),
    )


def _reading(handler: Callable[..., Any]) -> Tool:
    return make_tool(words_storage_errors(handler), category="query", read_only=True, idempotent=True, open_world=False)


def _changing(handler: Callable[..., Any], category: str | None = None) -> Tool:
    return make_tool(
        words_storage_errors(handler), category=category, destructive=True, idempotent=True, open_world=False
    )


def _space(context: ToolContext, namespace: str) -> Space:
    return Space(context.caller.principal, namespace)


def _check_readable(key: str, value: Any, limit: int) -> None:
    """Raise `ResourceExhausted` for what `memory_retrieve` could not answer with."""
    weight = weight_in_answer(MemoryEntry(key, value, HIGHEST, "0000-00-00T00:00:00.000Z")) + ANSWER_FRAME
    if weight > limit:
        raise ResourceExhausted(
            f"To read this back would take {weight} bytes, and at most {limit} are sent; store it in parts",
            {"reason": "value_too_large", "limit": limit, "actual": weight, "retryable": False},
        )


def _listing(page: Page, limit: int, offset: int, *, is_filtered: bool, is_cut: bool = False) -> MemoryListing:
    """The answer to a list, in which `hasMore` is exactly `offset + len(items) < total`.

    The offset comes with the cursor. If entries before it came or went in the meantime it is no longer right, and is
    set right where this page shows it to be wrong: the last page ends at the total, and the others end before it.
    """
    count = len(page.items)
    if not is_filtered:
        offset = min(offset, page.total - count - 1) if page.has_more else page.total - count
    return MemoryListing(
        page.items,
        limit,
        offset,
        page.has_more,
        page.has_more and is_cut,
        UNSET if is_filtered else page.total,
        write_cursor(ListCursor(offset + count, page.items[-1].key)) if page.has_more else UNSET,
    )
