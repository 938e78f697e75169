"""The `Memories` of `dragoman.db`. Every statement is answered from an index; the plans are tested."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dragoman.adapters.sqlite_database import SPACE_DIGITS, SqliteDatabase
from dragoman.clock import Clock
from dragoman.tools.builtin.memory import Draft, Entry, Item, Matches, Page, Space, Stored, draft, over_quota
from dragoman.tools.words import finds_longer_words

if TYPE_CHECKING:
    import sqlite3

_SPACE = "SELECT id, entries, stored FROM memory_space WHERE owner = ? AND namespace = ?"
_ENTRY = "SELECT id, bytes FROM memory_entry WHERE space = ? AND key = ?"
_VALUE = "SELECT value, bytes, updated_at FROM memory_entry WHERE space = ? AND key = ?"
_KEEP = "INSERT INTO memory_entry (id, space, key, bytes, updated_at, preview, value) VALUES (?, ?, ?, ?, ?, ?, ?)"
_DROP = "DELETE FROM memory_entry WHERE id = ?"
_UNINDEX = "DELETE FROM memory_word WHERE rowid = -?"
_COUNT = "UPDATE memory_space SET entries = entries + ?, stored = stored + ? WHERE id = ?"
_USE = """
    INSERT INTO memory_owner (name, bytes) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET bytes = bytes + ?2
    """
_LIST = """
    SELECT key, preview, bytes, updated_at FROM memory_entry
    WHERE space = ? AND key >= ? AND key < ? ORDER BY key LIMIT ?
    """
_SEARCH = """
    SELECT entry.key, entry.preview, entry.bytes, entry.updated_at, entry.id
    FROM memory_word AS word CROSS JOIN memory_entry AS entry ON entry.id = -word.rowid
    WHERE word.memory_word MATCH ? AND word.rowid > ? ORDER BY word.rowid LIMIT ?
    """
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

    async def retrieve(self, space: Space, key: str) -> Entry | None:
        return await self._database.read(partial(_retrieve, space, key))

    async def list(self, space: Space, limit: int, *, prefix: str = "", after: str | None = None) -> Page:
        return await self._database.read(partial(_list, space, limit, prefix, after))

    async def search(self, space: Space, words: Sequence[str], limit: int, *, resume: int | None = None) -> Matches:
        return await self._database.read(partial(_search, space, words, limit, resume))

    async def delete(self, space: Space, keys: Sequence[str]) -> int:
        return await self._database.write(partial(_delete, space, keys))

    async def close(self) -> None:
        """Nothing to do: the database belongs to whoever made it."""

    def _store(self, space: Space, key: str, entry: Draft, updated_at: str, connection: sqlite3.Connection) -> Stored:
        kept = _find(connection, space) or _make(connection, space)
        replaced = connection.execute(_ENTRY, (kept.id, key)).fetchone()
        old_id, old_bytes = replaced or (0, 0)
        used = connection.execute("SELECT bytes FROM memory_owner WHERE name = ?", (space.owner,)).fetchone() or (0,)
        actual = used[0] + entry.bytes - old_bytes
        if actual > self._limit and entry.bytes > old_bytes:
            raise over_quota(self._limit, actual)
        if replaced:
            connection.execute(_DROP, (old_id,))
        new_id = kept.entry(kept.stored + 1)
        connection.execute(_KEEP, (new_id, kept.id, key, entry.bytes, updated_at, entry.preview, entry.value))
        words = " ".join([_term(kept.id, word) for word in entry.words])
        connection.execute("INSERT INTO memory_word (rowid, words) VALUES (-?, ?)", (new_id, words))
        if replaced:  # Only now: the index takes what comes in its own order together, and writes it out at once.
            connection.execute(_UNINDEX, (old_id,))
        _account(connection, space, kept, 0 if replaced else 1, entry.bytes - old_bytes, stored=1)
        return Stored(key, not replaced, entry.bytes, updated_at)


def _retrieve(space: Space, key: str, connection: sqlite3.Connection) -> Entry | None:
    kept = _find(connection, space)
    row = kept and connection.execute(_VALUE, (kept.id, key)).fetchone()
    if not row:
        return None
    value, size, updated_at = row
    return Entry(key, msgspec.json.decode(value), size, updated_at)


def _list(space: Space, limit: int, prefix: str, after: str | None, connection: sqlite3.Connection) -> Page:
    kept = _find(connection, space)
    if kept is None:
        return Page((), False, 0)
    start = prefix if after is None else max(prefix, f"{after}\0")  # Nothing fits between a text and that.
    rows = connection.execute(_LIST, (kept.id, start, _end_of(prefix), limit + 1)).fetchall()
    return Page(tuple(Item(*row) for row in rows[:limit]), len(rows) > limit, kept.entries)


def _search(
    space: Space, words: Sequence[str], limit: int, resume: int | None, connection: sqlite3.Connection
) -> Matches:
    kept = _find(connection, space)
    if kept is None:
        return Matches((), None)
    terms = " ".join(f'"{_term(kept.id, word)}"{" *" if finds_longer_words(word) else ""}' for word in words)
    end = kept.entry(kept.stored + 1 if resume is None else resume)
    rows = connection.execute(_SEARCH, (terms, -end, limit + 1)).fetchall()
    items = tuple(Item(*row[:4]) for row in rows[:limit])
    # A number within the space: an id would tell how much others keep.
    return Matches(items, rows[limit - 1][4] & _MOST_STORED if len(rows) > limit else None)


def _delete(space: Space, keys: Sequence[str], connection: sqlite3.Connection) -> int:
    kept = _find(connection, space)
    if kept is None:
        return 0
    count = size = 0
    for key in keys:
        row = connection.execute(_ENTRY, (kept.id, key)).fetchone()
        if row is not None:
            _forget(connection, row[0])
            count += 1
            size += row[1]
    if count:
        _account(connection, space, kept, -count, -size)
    return count


def _find(connection: sqlite3.Connection, space: Space) -> _Kept | None:
    row = connection.execute(_SPACE, (space.owner, space.namespace)).fetchone()
    return _Kept(*row) if row else None


def _make(connection: sqlite3.Connection, space: Space) -> _Kept:
    made = connection.execute(
        "INSERT INTO memory_space (owner, namespace, entries, stored) VALUES (?, ?, 0, 0)",
        (space.owner, space.namespace),
    )
    assert made.lastrowid is not None
    return _Kept(made.lastrowid, 0, 0)


def _forget(connection: sqlite3.Connection, entry: int) -> None:
    connection.execute(_DROP, (entry,))
    connection.execute(_UNINDEX, (entry,))


def _account(
    connection: sqlite3.Connection, space: Space, kept: _Kept, entries: int, size: int, *, stored: int = 0
) -> None:
    """Keep the sums right. Spaces and owners that have nothing left leave nothing behind."""
    if kept.entries + entries == 0:
        connection.execute("DELETE FROM memory_space WHERE id = ?", (kept.id,))
    else:
        connection.execute(_COUNT, (entries, stored, kept.id))
    connection.execute(_USE, (space.owner, size))
    connection.execute("DELETE FROM memory_owner WHERE name = ? AND bytes = 0", (space.owner,))


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
