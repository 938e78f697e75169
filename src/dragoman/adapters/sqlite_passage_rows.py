"""The rows by which passages are found, written within the transaction that changes a document.

The index of words takes what comes in ascending order of its rowids together, so its rows are written `later`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dragoman.knowledge.indexing import CutAhead, IndexEntry, entries_of
from dragoman.knowledge.migrations import TENANT_DIGITS
from dragoman.knowledge.passages import size_of
from dragoman.knowledge.port import Document
from dragoman.knowledge.rows import MOST_BYTES, Room
from dragoman.search.ranking import posting

if TYPE_CHECKING:
    from dragoman.adapters.sqlite_writer import Transaction

MADE_BITS = 25
MOST_MADE = (1 << MADE_BITS) - 1

_NUMBER = "SELECT number FROM document WHERE tenant = ? AND id = ?"
_INDEXED = "SELECT tenant, made FROM passage_document WHERE document = ?"
_TENANT = "SELECT number FROM passage_tenant WHERE name = ?"
_ADD_TENANT = "INSERT INTO passage_tenant (name, passages, words) VALUES (?, 0, 0)"
_COUNT = "UPDATE passage_tenant SET passages = passages + ?, words = words + ? WHERE number = ?"
_KEEP_INDEXED = "INSERT OR REPLACE INTO passage_document (document, tenant, made) VALUES (?, ?, ?)"
_OLD = "SELECT number, hash, length FROM passage WHERE number BETWEEN ? AND ?"
_WORDS = "SELECT words FROM passage WHERE number = ?"
_ADD = "INSERT INTO passage (number, hash, length, heading, words, text) VALUES (?, ?, ?, ?, ?, ?)"
_WANT = """
    INSERT INTO passage_wanted (model, tenant, passage) SELECT passage_model.number, ?, passage.number
    FROM passage_model CROSS JOIN passage ON passage.number >= ? AND passage.number < ?
    """
_DROP = (
    "DELETE FROM passage WHERE number BETWEEN ? AND ?",
    "DELETE FROM passage_vector WHERE passage BETWEEN ? AND ?",
)
_WANT_NO_MORE = """
    DELETE FROM passage_wanted
    WHERE model IN (SELECT number FROM passage_model) AND tenant = ? AND passage BETWEEN ? AND ?
    """
_TAGS = "SELECT tags FROM document WHERE number = ?"
_MISS = "INSERT INTO passage_missing (tenant, is_found, document, revision) VALUES (?, 0, ?, ?)"
_REVISION = "SELECT revision FROM passage_missing WHERE document = ?"
_FOUND = "DELETE FROM passage_missing WHERE document = ?"
_DROP_DOCUMENT = ("DELETE FROM passage_document WHERE document = ?", _FOUND)
_ADD_TAG = "INSERT OR IGNORE INTO passage_tag (tenant, tag, document) VALUES (?, ?, ?)"
_DROP_TAG = "DELETE FROM passage_tag WHERE tenant = ? AND tag = ? AND document = ?"
# One row at a time: of a statement that inserts several, the index writes out what it holds before.
_INDEX = "INSERT INTO passage_term (rowid, terms) VALUES (?, ?)"
_UNINDEX = "INSERT INTO passage_term (passage_term, rowid, terms) VALUES ('delete', ?, ?)"


_encode = msgspec.json.encode
_decode_tags = msgspec.json.Decoder(tuple[str, ...]).decode


class Missing(NamedTuple):
    """A document that is not in the index as it is now, and what is to be there."""

    number: int
    tenant: str
    revision: int
    """Of the change that has left it so."""
    entries: Sequence[IndexEntry] | None
    """None for a deleted document."""


def index_new(writing: Transaction, number: int, document: Document, cut: CutAhead) -> bool:
    """Make a new document one that is found; whether that is done. A large text is noted as missing instead."""
    tenant = _tenant(writing, document.tenant)
    _add_tags(writing, tenant, number, document.tags)
    return _index(_Change(writing, tenant, number, 0), document, cut)


def index_changed(writing: Transaction, document: Document, before: Document, cut: CutAhead) -> bool:
    """Make what a document is found by that of its present state, as `index_new` does."""
    (number,) = writing.execute(_NUMBER, (document.tenant, document.id)).fetchone()
    change = _Change.of(writing, number, document.tenant)
    _drop_tags(writing, change.tenant, number, before.tags)
    _add_tags(writing, change.tenant, number, document.tags)
    return _index(change, document, cut)


def index_missing(writing: Transaction, missing: Missing, room: Room) -> bool:
    """Index a document, as much of it as there is room for; whether nothing is left of it to be done.

    So it is if the document has been changed meanwhile: then it is missing anew.
    """
    row = writing.execute(_REVISION, (missing.number,)).fetchone()
    if row != (missing.revision,):
        return True
    if missing.entries is not None:
        change = _Change.of(writing, missing.number, missing.tenant)
        if not change.to(missing.entries, room):
            return False
        _add_tags(writing, change.tenant, missing.number, _tags(writing, missing.number))
    writing.execute(_FOUND, (missing.number,))
    return True


def forget_passages(writing: Transaction, number: int, room: Room) -> bool:
    """Remove what a document is found by, as much of it as there is room for; whether that was all."""
    indexed = writing.execute(_INDEXED, (number,)).fetchone()
    if indexed is not None:
        tenant, made = indexed
        if not _Change(writing, tenant, number, made).to((), room):
            return False
        _drop_tags(writing, tenant, number, _tags(writing, number))
    for statement in _DROP_DOCUMENT:
        writing.execute(statement, (number,))
    return True


def _index(change: _Change, document: Document, cut: CutAhead) -> bool:
    is_done = size_of(document.body) <= MOST_BYTES and change.at_once(
        entries_of(document.title, cut.passages_of(document))
    )
    change.note(document, is_done)
    return is_done


class _Change:
    """Makes the passages of one document others."""

    def __init__(self, writing: Transaction, tenant: int, document: int, made: int) -> None:
        self.tenant = tenant
        self._writing = writing
        self._execute = writing.execute
        self._document = document
        self._first = document << MADE_BITS
        self._made = made
        self._passages = self._words = 0

    @classmethod
    def of(cls, writing: Transaction, number: int, tenant: str) -> _Change:
        row = writing.execute(_INDEXED, (number,)).fetchone()
        indexed, made = row or (_tenant(writing, tenant), 0)
        return cls(writing, indexed, number, made)

    def note(self, document: Document, is_done: bool) -> None:
        """Note whether the document is missing from now on."""
        self._execute(_FOUND, (self._document,))
        if not is_done:
            self._execute(_MISS, (document.tenant, self._document, document.revision))

    def at_once(self, entries: Sequence[IndexEntry]) -> bool:
        """Have passages for these entries and no others, unless that is too much for one transaction."""
        new, gone = self._differences(entries)
        room = Room()
        if len(gone) > room.rows:
            return False
        has_room = all(room.take(_rows_of(words), len(words)) for words in map(self._words_of, gone)) and all(
            room.take(_rows_of(each.words[1]), size_of(each.passage.text)) for each in new
        )
        return has_room and self.to(entries, Room(sys.maxsize, sys.maxsize))

    def to(self, entries: Sequence[IndexEntry], room: Room) -> bool:
        """Go on towards these passages as far as there is room; whether there are no others now."""
        new, gone = self._differences(entries)
        is_all = self._drop(gone, room, keeps_none=len(new) == len(entries))
        if is_all and self._starts_over(entries):
            self._made = 0
        is_all = is_all and self._add(new, room)
        if self._passages or self._words:
            self._execute(_COUNT, (self._passages, self._words, self.tenant))
        return is_all

    def _starts_over(self, entries: Sequence[IndexEntry]) -> bool:
        """Whether numbers are used again, after millions of edits."""
        return self._made + len(entries) > MOST_MADE

    def _differences(self, entries: Sequence[IndexEntry]) -> tuple[list[IndexEntry], dict[int, int]]:
        """The entries that are new, and how many words each passage has that is to go, by its number."""
        old: dict[bytes, list[tuple[int, int]]] = {}
        if self._made:
            for number, hash, length in self._execute(_OLD, (self._first, self._first + MOST_MADE)):
                old.setdefault(hash, []).append((number, length))
        starts_over = self._starts_over(entries)
        new = []
        for entry in entries:
            same = None if starts_over else old.get(entry.hash)
            if same:
                same.pop()
            else:
                new.append(entry)
        return new, {number: length for rows in old.values() for number, length in rows}

    def _add(self, new: Sequence[IndexEntry], room: Room) -> bool:
        """Add passages; whether there was room for all."""
        first, added = self._first + self._made, 0
        for entry in new:
            length, words = entry.words
            if not room.take(_rows_of(words), size_of(entry.passage.text)):
                break
            heading = _encode(entry.passage.heading).decode()
            self._execute(_ADD, (first + added, entry.hash, length, heading, words, entry.passage.text))
            self._later(_INDEX, first + added, length, words)
            self._words += length
            added += 1
        if added:
            self._passages += added
            self._made += added
            self._execute(_KEEP_INDEXED, (self._document, self.tenant, self._made))
            self._execute(_WANT, (self.tenant, first, first + added))
        return added == len(new)

    def _drop(self, gone: Mapping[int, int], room: Room, *, keeps_none: bool) -> bool:
        """Drop passages, from the first on; whether there was room for all."""
        dropped: list[int] = []
        for number in sorted(gone):
            words = self._words_of(number)
            if not room.take(_rows_of(words), len(words)):
                break
            dropped.append(number)
            self._later(_UNINDEX, number, gone[number], words)
            self._words -= gone[number]
        self._passages -= len(dropped)
        if keeps_none and dropped:
            self._drop_rows(self._first, dropped[-1])
        else:
            for number in dropped:
                self._drop_rows(number, number)
        return len(dropped) == len(gone)

    def _words_of(self, number: int) -> str:
        return str(self._execute(_WORDS, (number,)).fetchone()[0])

    def _drop_rows(self, first: int, last: int) -> None:
        for statement in _DROP:
            self._execute(statement, (first, last))
        self._execute(_WANT_NO_MORE, (self.tenant, first, last))

    def _later(self, statement: str, number: int, length: int, words: str) -> None:
        """Change the index of words before the commit."""
        rows = _rows(self.tenant, number, length, words)
        self._writing.later += [(row[0], statement, row) for row in rows]


def _rows_of(words: str) -> int:
    """About how many rows a passage has: one for each line of its words, itself, a vector, and notes of two models."""
    return 4 + sum(map(bool, words.split("\n")))


def _rows(tenant: int, number: int, length: int, words: str) -> Iterator[tuple[int, str]]:
    """The rows of the index of words, in ascending order."""
    for count, line in enumerate(words.split("\n"), 1):
        if line:
            before = term(tenant, "")
            yield posting(number, count, length), before + line.replace(" ", f" {before}")


def term(tenant: int, word: str) -> str:
    """A word of one tenant: nothing of another's is in the way of a search."""
    return f"{tenant:0{TENANT_DIGITS}x}{word}"


def _tags(writing: Transaction, number: int) -> tuple[str, ...]:
    """The tags of a document, as it stands."""
    tags: tuple[str, ...] = _decode_tags(writing.execute(_TAGS, (number,)).fetchone()[0])
    return tags


def _tenant(writing: Transaction, name: str) -> int:
    row = writing.execute(_TENANT, (name,)).fetchone()
    number: int | None = row[0] if row else writing.execute(_ADD_TENANT, (name,)).lastrowid
    assert number is not None
    return number


def _add_tags(writing: Transaction, tenant: int, number: int, tags: Iterable[str]) -> None:
    for tag in tags:
        writing.execute(_ADD_TAG, (tenant, tag, number))


def _drop_tags(writing: Transaction, tenant: int, number: int, tags: Iterable[str]) -> None:
    for tag in tags:
        writing.execute(_DROP_TAG, (tenant, tag, number))
