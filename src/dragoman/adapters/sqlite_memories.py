"""The `Memories` of `dragoman.db`. Every statement is answered from an index; the plans are tested."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.calls.places import Holder
from dragoman.clock import Clock
from dragoman.errors import OverQuota
from dragoman.memories.migrations import SPACE_DIGITS
from dragoman.memories.port import Draft, Item, Matches, MemoryEntry, Page, Space, Stored, draft
from dragoman.search.words import finds_longer_words

if TYPE_CHECKING:
    import sqlite3

_SPACE = "SELECT id, entries, stored FROM memory_space WHERE owner = ? AND namespace = ?"
_ENTRY = "SELECT id, bytes, terms FROM memory_entry WHERE space = ? AND key = ?"
_VALUE = "SELECT value, bytes, updated_at FROM memory_entry WHERE space = ? AND key = ?"
_KEEP = """
    INSERT INTO memory_entry (id, space, key, bytes, updated_at, preview, terms, value) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    """
_DROP = "DELETE FROM memory_entry WHERE id = ?"
# For later: the index takes what comes in ascending order together, and writes it out at once.
_INDEX = "INSERT INTO memory_term (rowid, terms) VALUES (?, ?)"
_UNINDEX = "INSERT INTO memory_term (memory_term, rowid, terms) VALUES ('delete', ?, ?)"
_COUNT = "UPDATE memory_space SET entries = entries + ?, stored = stored + ? WHERE id = ?"
_USE = """
    INSERT INTO memory_owner (name, bytes) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET bytes = bytes + excluded.bytes
    """
_LIST = """
    SELECT key, preview, bytes, updated_at FROM memory_entry
    WHERE space = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?
    """
_SEARCH = """
    SELECT entry.key, entry.preview, entry.bytes, entry.updated_at, entry.id
    FROM memory_term AS term CROSS JOIN memory_entry AS entry ON entry.id = -term.rowid
    WHERE term.memory_term MATCH ? AND term.rowid > ? ORDER BY term.rowid LIMIT ?
    """
_FIND = "SELECT -rowid FROM memory_term WHERE memory_term MATCH ? AND rowid > ? ORDER BY rowid LIMIT ?"
_FOUND = "SELECT key, preview, bytes, updated_at, id, terms FROM memory_entry WHERE id = ?"
_FEW = 8
_MOST_STORED = 2**32 - 1
"""Of one space, ever."""
_LAST_CHARACTER = "\U0010ffff"


class _Kept(NamedTuple):
    """A row of `memory_space`."""

    id: int
    entries: int
    stored: int

    def entry(self, number: int) -> int:
        """The id of what was stored as the first, the second and so on."""
        return self.id << 32 | min(number, _MOST_STORED)


class SqliteMemories:
    """Keeps entries in a database, `max_bytes_per_owner` of each owner's at the most."""

    def __init__(self, database: SqliteDatabase, max_bytes_per_owner: int, clock: Clock) -> None:
        self._database = database
        self._limit = max_bytes_per_owner
        self._clock = clock

    async def store(self, space: Space, key: str, value: Any) -> Stored:
        entry = await draft(space, key, value)
        return await self._database.write(partial(self._store, space, key, entry, self._clock.timestamp()))

    async def retrieve(self, space: Space, key: str) -> MemoryEntry | None:
        return await self._database.read(partial(_retrieve, space, key), _holder_of(space))

    async def list(self, space: Space, limit: int, *, prefix: str = "", after: str | None = None) -> Page:
        return await self._database.read(partial(_list, space, limit, prefix, after), _holder_of(space))

    async def search(self, space: Space, words: Sequence[str], limit: int, *, resume: int | None = None) -> Matches:
        return await self._database.read(partial(_search, space, words, limit, resume), _holder_of(space))

    async def delete(self, space: Space, keys: Sequence[str]) -> int:
        return await self._database.write(partial(_delete, space, keys))

    def _store(self, space: Space, key: str, entry: Draft, updated_at: str, writing: Transaction) -> Stored:
        kept = _find(writing, space) or _make(writing, space)
        replaced = writing.execute(_ENTRY, (kept.id, key)).fetchone()
        old_id, old_bytes, old_terms = replaced or (0, 0, "")
        used = writing.execute("SELECT bytes FROM memory_owner WHERE name = ?", (space.owner,)).fetchone() or (0,)
        actual = used[0] + entry.bytes - old_bytes
        if actual > self._limit and entry.bytes > old_bytes:
            raise OverQuota(self._limit, actual)
        if replaced:
            _forget(writing, old_id, old_terms)
        new_id = kept.entry(kept.stored + 1)
        terms = " ".join([_term(kept.id, word) for word in entry.words])
        writing.execute(_KEEP, (new_id, kept.id, key, entry.bytes, updated_at, entry.preview, terms, entry.value))
        writing.later.append((-new_id, _INDEX, (-new_id, terms)))
        _account(writing, space, kept, 0 if replaced else 1, entry.bytes - old_bytes, stored=1)
        return Stored(key, not replaced, entry.bytes, updated_at)


def _retrieve(space: Space, key: str, connection: sqlite3.Connection) -> MemoryEntry | None:
    kept = _find(connection, space)
    row = kept and connection.execute(_VALUE, (kept.id, key)).fetchone()
    if not row:
        return None
    value, size, updated_at = row
    return MemoryEntry(key, msgspec.json.decode(value), size, updated_at)


def _list(space: Space, limit: int, prefix: str, after: str | None, connection: sqlite3.Connection) -> Page:
    kept = _find(connection, space)
    if kept is None:
        return Page((), False, 0)
    start = prefix if after is None else max(prefix, f"{after}\0")  # Nothing fits between a text and that.
    rows = connection.execute(_LIST, (kept.id, start, _end_of(prefix), limit + 1)).fetchall()
    return Page(tuple(Item(*row) for row in rows[:limit]), len(rows) > limit, kept.entries)


def _holder_of(space: Space) -> Holder:
    """An owner shares the threads that read with others, and with the tenants of documents."""
    return Holder(f"memories of {space.owner}")


def _search(
    space: Space, words: Sequence[str], limit: int, resume: int | None, connection: sqlite3.Connection
) -> Matches:
    kept = _find(connection, space)
    if kept is None:
        return Matches((), None)
    looked_for = [_LookedFor(_term(kept.id, word), finds_longer_words(word)) for word in words]
    end = kept.entry(kept.stored + 1 if resume is None else resume)
    rows = _search_few(looked_for, end, connection) if len(words) > 1 else None
    if rows is None:
        query = " ".join(word.query for word in looked_for)
        rows = connection.execute(_SEARCH, (query, -end, limit + 1)).fetchall()
    items = tuple(Item(*row[:4]) for row in rows[:limit])
    # A number within the space: an id would tell how much others keep.
    return Matches(items, rows[limit - 1][4] & _MOST_STORED if len(rows) > limit else None)


class _LookedFor(NamedTuple):
    term: str
    finds_longer: bool

    @property
    def query(self) -> str:
        return f'"{self.term}"{" *" if self.finds_longer else ""}'

    def is_in(self, terms: str) -> bool:
        return (f" {self.term}" if self.finds_longer else f" {self.term} ") in f" {terms} "


def _search_few(
    looked_for: Sequence[_LookedFor], end: int, connection: sqlite3.Connection
) -> list[tuple[Any, ...]] | None:
    """What has all the words, if one of them is so rare that it is less work to look at every entry that has it.

    The index would also go to the place of each of these entries among all that have a common word.
    """
    for word in sorted(looked_for, key=lambda word: len(word.term), reverse=True):
        found = connection.execute(_FIND, (word.query, -end, _FEW + 1)).fetchall()
        if len(found) <= _FEW:
            rows = [connection.execute(_FOUND, row).fetchone() for row in found]
            return [row for row in rows if all(word.is_in(row[5]) for word in looked_for)]
    return None


def _delete(space: Space, keys: Sequence[str], writing: Transaction) -> int:
    kept = _find(writing, space)
    if kept is None:
        return 0
    count = size = 0
    for key in keys:
        row = writing.execute(_ENTRY, (kept.id, key)).fetchone()
        if row is not None:
            _forget(writing, row[0], row[2])
            count += 1
            size += row[1]
    if count:
        _account(writing, space, kept, -count, -size)
    return count


def _find(connection: sqlite3.Connection | Transaction, space: Space) -> _Kept | None:
    row = connection.execute(_SPACE, (space.owner, space.namespace)).fetchone()
    return _Kept(*row) if row else None


def _make(writing: Transaction, space: Space) -> _Kept:
    made = writing.execute(
        "INSERT INTO memory_space (owner, namespace, entries, stored) VALUES (?, ?, 0, 0)",
        (space.owner, space.namespace),
    )
    assert made.lastrowid is not None
    return _Kept(made.lastrowid, 0, 0)


def _forget(writing: Transaction, entry: int, terms: str) -> None:
    writing.execute(_DROP, (entry,))
    writing.later.append((-entry, _UNINDEX, (-entry, terms)))


def _account(writing: Transaction, space: Space, kept: _Kept, entries: int, size: int, *, stored: int = 0) -> None:
    """Keep the sums right. Spaces and owners that have nothing left leave nothing behind."""
    if kept.entries + entries == 0:
        writing.execute("DELETE FROM memory_space WHERE id = ?", (kept.id,))
    else:
        writing.execute(_COUNT, (entries, stored, kept.id))
    writing.execute(_USE, (space.owner, size))
    if entries < 0:
        writing.execute("DELETE FROM memory_owner WHERE name = ? AND bytes = 0", (space.owner,))


def _term(space: int, word: str) -> str:
    """A word of one space: an index of such terms has nothing of one owner's in the way of another's search."""
    return f"{space:0{SPACE_DIGITS}x}{word}"


def _end_of(prefix: str) -> str | bytes:
    """What comes after every text that begins with `prefix`, and before every other text that comes after those."""
    kept = prefix.rstrip(_LAST_CHARACTER)
    if not kept:
        return b""  # Every text comes before every blob.
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)  # Surrogates are no characters.
