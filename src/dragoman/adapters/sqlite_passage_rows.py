"""The rows by which passages are found, written within the transaction that changes a document.

The index of words takes what comes in ascending order of its rowids together, so its rows are written `later`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dragoman.knowledge.index import Passage
from dragoman.knowledge.indexing import IndexEntry, entries_of
from dragoman.knowledge.migrations import TENANT_DIGITS
from dragoman.knowledge.port import Document
from dragoman.knowledge.rows import Room
from dragoman.search.ranking import MOST_COUNT, posting
from dragoman.search.words import all_words_in

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
_OLD = "SELECT number, hash, length, words FROM passage WHERE number BETWEEN ? AND ?"
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
_FOUND = "DELETE FROM passage_missing WHERE document = ?"
_DROP_DOCUMENT = ("DELETE FROM passage_document WHERE document = ?", _FOUND)
_ADD_TAG = "INSERT OR IGNORE INTO passage_tag (tenant, tag, document) VALUES (?, ?, ?)"
_DROP_TAG = "DELETE FROM passage_tag WHERE tenant = ? AND tag = ? AND document = ?"
# One row at a time: of a statement that inserts several, the index writes out what it holds before.
_INDEX = "INSERT INTO passage_term (rowid, terms) VALUES (?, ?)"
_UNINDEX = "INSERT INTO passage_term (passage_term, rowid, terms) VALUES ('delete', ?, ?)"


_encode = msgspec.json.encode


def index_new(writing: Transaction, number: int, document: Document, passages: Iterable[Passage]) -> None:
    """Make a new document one that is found."""
    tenant = _tenant(writing, document.tenant)
    _Change(writing, tenant, number, 0).to(entries_of(document.title, passages))
    _add_tags(writing, tenant, number, document.tags)


def index_changed(writing: Transaction, document: Document, before: Document, passages: Iterable[Passage]) -> None:
    """Make what a document is found by that of its present state; the last one need not be in the index."""
    (number,) = writing.execute(_NUMBER, (document.tenant, document.id)).fetchone()
    indexed = writing.execute(_INDEXED, (number,)).fetchone()
    tenant, made = indexed or (_tenant(writing, document.tenant), 0)
    _Change(writing, tenant, number, made).to(entries_of(document.title, passages))
    _drop_tags(writing, tenant, number, before.tags)
    _add_tags(writing, tenant, number, document.tags)
    writing.execute(_FOUND, (number,))


def forget_passages(writing: Transaction, number: int, room: Room) -> bool:
    """Remove what a document is found by, as much of it as there is room for; whether that was all."""
    indexed = writing.execute(_INDEXED, (number,)).fetchone()
    if indexed is not None:
        tenant, made = indexed
        if not _Change(writing, tenant, number, made).forget(room):
            return False
        (tags,) = writing.execute(_TAGS, (number,)).fetchone()
        _drop_tags(writing, tenant, number, msgspec.json.decode(tags))
    for statement in _DROP_DOCUMENT:
        writing.execute(statement, (number,))
    return True


class _Old(NamedTuple):
    number: int
    hash: bytes
    length: int
    words: str

    @property
    def rows(self) -> int:
        """About how many rows there are of it: with its lines in the index of words, a vector and a note."""
        return 3 + self.words.count("\n") + 1


class _Change:
    """Makes the passages of one document others."""

    def __init__(self, writing: Transaction, tenant: int, document: int, made: int) -> None:
        self._writing = writing
        self._execute = writing.execute
        self._tenant = tenant
        self._document = document
        self._made = made
        self._passages = self._words = 0

    def to(self, entries: Sequence[IndexEntry]) -> None:
        first = self._document << MADE_BITS
        old: dict[bytes, list[_Old]] = {}
        if self._made:
            for row in self._execute(_OLD, (first, first + MOST_MADE)):
                old.setdefault(row[1], []).append(_Old(*row))
        starts_over = self._made + len(entries) > MOST_MADE  # After millions of edits: numbers are used again.
        new = []
        for entry in entries:
            same = None if starts_over else old.get(entry.hash)
            if same:
                same.pop()
            else:
                new.append(entry)
        gone = [each for rows in old.values() for each in rows]
        if self._made and len(new) == len(entries):
            self._drop(gone, [(first, first + MOST_MADE)])
        else:
            self._drop(gone, [(each.number, each.number) for each in gone])
        if new:
            self._made = 0 if starts_over else self._made
            added = first + self._made
            for entry in new:
                self._add(first + self._made, entry)
            self._execute(_KEEP_INDEXED, (self._document, self._tenant, self._made))
            self._execute(_WANT, (self._tenant, added, first + self._made))
        self._execute(_COUNT, (self._passages, self._words, self._tenant))

    def forget(self, room: Room) -> bool:
        """Drop passages, as many as there is room for; whether none is left."""
        first = self._document << MADE_BITS
        gone: list[_Old] = []
        is_all = True
        for row in self._execute(_OLD, (first, first + MOST_MADE)):
            is_all = room.is_left
            if not is_all:
                break
            gone.append(each := _Old(*row))
            room.rows -= each.rows
            room.bytes -= len(each.words)
        if gone:
            self._drop(gone, [(first, gone[-1].number)])
            self._execute(_COUNT, (self._passages, self._words, self._tenant))
        return is_all

    def _add(self, number: int, entry: IndexEntry) -> None:
        found = all_words_in(entry.text)
        words = lines_of(found)
        heading = _encode(entry.passage.heading).decode()
        self._execute(_ADD, (number, entry.hash, len(found), heading, words, entry.passage.text))
        rows = _rows(self._tenant, number, len(found), words)
        self._writing.later += [(row[0], _INDEX, row) for row in rows]
        self._made += 1
        self._passages += 1
        self._words += len(found)

    def _drop(self, gone: Sequence[_Old], ranges: Sequence[tuple[int, int]]) -> None:
        for statement in _DROP:
            for each in ranges:
                self._execute(statement, each)
        for each in ranges:
            self._execute(_WANT_NO_MORE, (self._tenant, *each))
        for number, _, length, words in gone:
            rows = _rows(self._tenant, number, length, words)
            self._writing.later += [(row[0], _UNINDEX, row) for row in rows]
            self._words -= length
        self._passages -= len(gone)


def lines_of(words: list[str]) -> str:
    """The text of the column `words`."""
    lines: list[list[str]] = [[] for _ in range(MOST_COUNT)]
    for word, count in Counter(words).items():
        lines[min(count, MOST_COUNT) - 1].append(word)
    return "\n".join([" ".join(line) for line in lines]).rstrip("\n")


def _rows(tenant: int, number: int, length: int, words: str) -> Iterator[tuple[int, str]]:
    """The rows of the index of words, in ascending order."""
    for count, line in enumerate(words.split("\n"), 1):
        if line:
            before = term(tenant, "")
            yield posting(number, count, length), before + line.replace(" ", f" {before}")


def term(tenant: int, word: str) -> str:
    """A word of one tenant: nothing of another's is in the way of a search."""
    return f"{tenant:0{TENANT_DIGITS}x}{word}"


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
