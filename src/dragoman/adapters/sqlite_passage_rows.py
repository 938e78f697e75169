"""The rows by which passages are found, written within the transaction that changes a document.

The index of words takes what comes in ascending order of its rowids together, so its rows are written `later`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct

from dragoman.knowledge.indexing import CountedWords, CutAhead, IndexEntry, has_other_text, words_of_title
from dragoman.knowledge.migrations import TENANT_DIGITS
from dragoman.knowledge.passages import size_of
from dragoman.knowledge.port import Document
from dragoman.knowledge.rows import MOST_BYTES, Room
from dragoman.search.ranking import LENGTH_BITS, posting
from dragoman.search.titles import outline_of, packed, unpacked

if TYPE_CHECKING:
    from dragoman.adapters.sqlite_writer import Transaction

MADE_BITS = 25
MOST_MADE = _TITLE = (1 << MADE_BITS) - 1

_NUMBER = "SELECT number FROM document WHERE tenant = ? AND id = ?"
_INDEXED = "SELECT tenant, made, title_length, title_words, outline FROM passage_document WHERE document = ?"
_TENANT = "SELECT number FROM passage_tenant WHERE name = ?"
_ADD_TENANT = "INSERT INTO passage_tenant (name, passages, words) VALUES (?, 0, 0)"
_COUNT = "UPDATE passage_tenant SET passages = passages + ?, words = words + ? WHERE number = ?"
_KEEP_INDEXED = """
    INSERT OR REPLACE INTO passage_document (document, tenant, made, title_length, title_words, outline)
    VALUES (?, ?, ?, ?, ?, ?)
    """
_RENEW = "UPDATE passage SET hash = ?, length = ?, words = ? WHERE number = ?"
_IS_BARE = "SELECT 1 FROM passage WHERE number = ? AND text = ''"
_DROP_VECTOR = "DELETE FROM passage_vector WHERE passage = ?"
_OLD = "SELECT number, hash, length FROM passage WHERE number BETWEEN ? AND ? ORDER BY number LIMIT ?"
_WORDS = "SELECT words FROM passage WHERE number = ?"
_ADD = "INSERT INTO passage (number, hash, length, heading, words, text) VALUES (?, ?, ?, ?, ?, ?)"
_WANT = """
    INSERT OR IGNORE INTO passage_wanted (model, tenant, passage) SELECT passage_model.number, ?, passage.number
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
_TOLD = "SELECT title, tags FROM document WHERE number = ?"
_OWNER = "SELECT tenant, title, tags FROM document WHERE number = ?"
_MISS = "INSERT INTO passage_missing (tenant, is_found, document, revision) VALUES (?, 0, ?, ?)"
_REVISION = "SELECT revision FROM passage_missing WHERE document = ?"
_FOUND = "DELETE FROM passage_missing WHERE document = ?"
_DROP_DOCUMENT = ("DELETE FROM passage_document WHERE document = ?", _FOUND)
_ADD_TAG = "INSERT OR IGNORE INTO passage_tag (tenant, tag, document) VALUES (?, ?, ?)"
_DROP_TAG = "DELETE FROM passage_tag WHERE tenant = ? AND tag = ? AND document = ?"
# One row at a time: of a statement that inserts several, the index writes out what it holds before.
_INDEX = "INSERT INTO passage_term (rowid, terms) VALUES (?, ?)"
_UNINDEX = "INSERT INTO passage_term (passage_term, rowid, terms) VALUES ('delete', ?, ?)"


_HIGHEST = 2**63 - 1
_ROWS_OF_A_DOCUMENT = 5
"""About as many are there besides those of passages: its own, those of its title, and of tags."""

_encode = msgspec.json.encode
_decode_tags = msgspec.json.Decoder(tuple[str, ...]).decode


class _Plan(Struct):
    """The rest of the work on the passages of a document."""

    new: list[IndexEntry]
    gone: dict[int, int]
    """How many words each passage has that is to go, by its number."""
    same: list[tuple[int, int, IndexEntry]]
    """Passages that stay, but for their words: the number, and how many words it has had."""
    keeps_none: bool
    """Whether all passages go that there were."""
    row: tuple[Any, ...] | None = None
    """The row of the document as the last piece stored it. If it differs, another writer has changed it since."""


class Missing(NamedTuple):
    """A document that is not in the index as it is now, and what is to be there."""

    number: int
    tenant: str
    revision: int
    """Of the change that has left it so."""
    title: str
    entries: Sequence[IndexEntry] | None
    """None for a deleted document."""
    plans: list[_Plan]
    """The plan that the last piece left, if there was one."""


def index_new(writing: Transaction, number: int, document: Document, cut: CutAhead) -> bool:
    """Make a new document one that is found; whether that is done. A large text is noted as missing instead."""
    change = _Change.of(writing, number, document.tenant)
    _add_tags(writing, change.tenant, number, document.tags)
    change.set_title(document.title)
    return change.index(document, cut)


def index_changed(writing: Transaction, document: Document, before: Document, cut: CutAhead | None) -> bool:
    """Make what a document is found by that of its present state, as `index_new` does.

    Without `cut` the text is known to be a large one, and may be left out.
    Only another text has other passages: for another title or other tags, none is read, cut or indexed.
    """
    (number,) = writing.execute(_NUMBER, (document.tenant, document.id)).fetchone()
    change = _Change.of(writing, number, document.tenant)
    if document.tags != before.tags:
        _drop_tags(writing, change.tenant, number, before.tags)
        _add_tags(writing, change.tenant, number, document.tags)
    has_title, has_text = document.title != before.title, has_other_text(document, before)
    if not change.has_title and (has_title or has_text):
        change.note(document, is_done=False)  # Its passages are from an earlier version, if there are any.
        return False
    if has_title:
        change.set_title(document.title)
    return not has_text or change.index(document, cut)


def index_missing(writing: Transaction, missing: Missing, room: Room) -> bool:
    """Index a document, as much of it as there is room for; whether nothing is left of it to be done.

    So it is if the document has been changed meanwhile: then it is missing anew.
    """
    row = writing.execute(_REVISION, (missing.number,)).fetchone()
    if row != (missing.revision,):
        return True
    if missing.entries is not None:
        change = _Change.of(writing, missing.number, missing.tenant)
        title = None if change.has_title else missing.title
        if not change.to(missing.entries, room, title, missing.plans):
            return False
        title, tags = writing.execute(_TOLD, (missing.number,)).fetchone()
        if not change.has_title:
            change.set_title(title)
        _add_tags(writing, change.tenant, missing.number, _decode_tags(tags))
    writing.execute(_FOUND, (missing.number,))
    return True


def forget_passages(writing: Transaction, number: int, room: Room) -> bool:
    """Remove what a document is found by, as much of it as there is room for; whether that was all."""
    tenant, _, tags = writing.execute(_OWNER, (number,)).fetchone()
    change = _Change.of(writing, number, tenant)
    if change.is_known:
        if not change.to((), room):
            return False
        change.drop_title()
        _drop_tags(writing, change.tenant, number, _decode_tags(tags))
        room.rows -= _ROWS_OF_A_DOCUMENT
    for statement in _DROP_DOCUMENT:
        writing.execute(statement, (number,))
    return True


class _Change:
    """Makes the passages of one document others."""

    def __init__(self, writing: Transaction, document: int, row: tuple[Any, ...]) -> None:
        self._writing = writing
        self._execute = writing.execute
        self._document = document
        self._row = row
        self._first = document << MADE_BITS
        self.tenant: int = row[0]
        self._made: int = row[1]
        self._title: CountedWords | None = None if row[2] is None else CountedWords(row[2], row[3])
        self._packed: bytes = row[4]
        self._passages = self._words = 0
        self._is_changed = False
        self.is_known = True
        """Whether anything of the document has ever been in the index."""

    @classmethod
    def of(cls, writing: Transaction, number: int, tenant: str) -> _Change:
        row = writing.execute(_INDEXED, (number,)).fetchone()
        change = cls(writing, number, row or (_tenant(writing, tenant), 0, None, "", b""))
        change.is_known = row is not None
        return change

    @cached_property
    def _outline(self) -> dict[int, int]:
        return {each >> LENGTH_BITS: each for each in unpacked(self._packed)}

    @property
    def has_title(self) -> bool:
        """Whether the words of the title are kept, and are in no passage."""
        return self._title is not None

    def set_title(self, title: str) -> None:
        """Have the passages be found by this title."""
        self.drop_title()
        self._title = words_of_title(title)
        self._later(_INDEX, _TITLE, *self._title)
        self._save()
        only = self._first + next(iter(self._outline)) if len(self._outline) == 1 else -1
        if self._execute(_IS_BARE, (only,)).fetchone():  # Of a document without text, the title is embedded.
            self._execute(_DROP_VECTOR, (only,))
            self._execute(_WANT, (self.tenant, only, only + 1))

    def drop_title(self) -> None:
        if self._title is not None:
            self._later(_UNINDEX, _TITLE, *self._title)

    def note(self, document: Document, *, is_done: bool) -> None:
        """Note whether the document is missing from now on."""
        self._execute(_FOUND, (self._document,))
        if not is_done:
            self._execute(_MISS, (document.tenant, self._document, document.revision))

    def index(self, document: Document, cut: CutAhead | None) -> bool:
        """Index a text, unless that is too much for the transaction of a change; whether it is indexed."""
        if cut is None or size_of(document.body) > MOST_BYTES:
            is_done = False
        else:
            is_done = self._at_once(cut.entries_of(document))
        self.note(document, is_done=is_done)
        return is_done

    def to(
        self,
        entries: Sequence[IndexEntry],
        room: Room,
        earlier_title: str | None = None,
        plans: list[_Plan] | None = None,
    ) -> bool:
        """Go on towards these passages as far as there is room; whether there are no others now.

        With `earlier_title`, passages of an earlier version, which have that title, become those of this one. What is
        left to be done is kept in `plans`: to find it out takes longer than a piece of it.
        """
        plan = plans.pop() if plans else None
        if plan is None or plan.row != self._row or self._starts_over(entries):
            plan = self._planned(entries, earlier_title, room)
        is_all = self._renew(plan.same, room) and self._drop(plan.gone, room, keeps_none=plan.keeps_none)
        if is_all and self._starts_over(entries):
            self._made = 0
        is_all = is_all and self._add(plan.new, room)
        if self._is_changed:
            self._execute(_COUNT, (self._passages, self._words, self.tenant))
            plan.row = self._save()
            if plans is not None and self.has_title:  # Or else a piece may leave the row as it was.
                plans.append(plan)
        return is_all

    def _at_once(self, entries: Sequence[IndexEntry]) -> bool:
        room = Room()
        plan = self._planned(entries, None, room)
        if len(plan.gone) > room.rows:
            return False
        has_room = all(room.take(_rows_of(words), len(words)) for words in map(self._words_of, plan.gone)) and all(
            room.take(_rows_of(each.words.lines), size_of(each.passage.text)) for each in plan.new
        )
        return has_room and self.to(entries, Room(sys.maxsize, sys.maxsize))

    def _starts_over(self, entries: Sequence[IndexEntry]) -> bool:
        """Whether numbers are used again, after millions of edits."""
        return self._made + len(entries) > MOST_MADE

    def _planned(self, entries: Sequence[IndexEntry], earlier_title: str | None, room: Room) -> _Plan:
        """The work to do. If all passages go, only as many as there is room for are planned."""
        old: dict[bytes, list[tuple[int, int]]] = {}
        if self._made:
            most = _HIGHEST if entries else max(1, room.rows + 1)
            for number, hash, length in self._execute(
                _OLD, (self._first, self._first + MOST_MADE, min(most, _HIGHEST))
            ):
                old.setdefault(hash, []).append((number, length))
        starts_over = self._starts_over(entries)
        new: list[IndexEntry] = []
        renewed: list[tuple[int, int, IndexEntry]] = []
        for entry in entries:
            if starts_over:
                new.append(entry)
            elif same := old.get(entry.hash):
                same.pop()
            elif earlier_title is not None and (same := old.get(entry.hash_with(earlier_title))):
                renewed.append((*same.pop(), entry))
            else:
                new.append(entry)
        gone = {number: length for rows in old.values() for number, length in rows}
        return _Plan(new, gone, renewed, keeps_none=len(new) == len(entries))

    def _renew(self, same: Sequence[tuple[int, int, IndexEntry]], room: Room) -> bool:
        """Give passages the words that they are found by now; whether there was room for all."""
        for number, length, entry in same:
            before, words = self._words_of(number), entry.words
            if not room.take(_rows_of(before) + _rows_of(words.lines), len(before) + len(words.lines)):
                return False
            self._execute(_RENEW, (entry.hash, *words, number))
            self._later(_UNINDEX, number - self._first, length, before)
            self._later(_INDEX, number - self._first, *words)
            self._words += words.length - length
            self._outline[number - self._first] = outline_of(number - self._first, words.length)
            self._is_changed = True
        return True

    def _add(self, new: list[IndexEntry], room: Room) -> bool:
        """Add passages; whether there was room for all."""
        before = self._made
        for entry in new:
            if not room.take(_rows_of(entry.words.lines), size_of(entry.passage.text)):
                break
            length, words = entry.words
            heading = _encode(entry.passage.heading).decode()
            self._execute(_ADD, (self._first + self._made, entry.hash, length, heading, words, entry.passage.text))
            self._later(_INDEX, self._made, length, words)
            self._outline[self._made] = outline_of(self._made, length)
            self._words += length
            self._made += 1
        added = self._made - before
        if added:
            self._passages += added
            self._execute(_WANT, (self.tenant, self._first + before, self._first + self._made))
            self._is_changed = True
        del new[:added]
        return not new

    def _drop(self, gone: dict[int, int], room: Room, *, keeps_none: bool) -> bool:
        """Drop passages, from the first on; whether there was room for all."""
        dropped: list[int] = []
        for number in sorted(gone):
            words = self._words_of(number)
            if not room.take(_rows_of(words), len(words)):
                break
            dropped.append(number)
            length = gone.pop(number)
            self._later(_UNINDEX, number - self._first, length, words)
            self._outline.pop(number - self._first, None)
            self._words -= length
        if dropped:
            self._passages -= len(dropped)
            self._is_changed = True
        if keeps_none and dropped:
            self._drop_rows(self._first, dropped[-1])
        else:
            for number in dropped:
                self._drop_rows(number, number)
        return not gone

    def _words_of(self, number: int) -> str:
        return str(self._execute(_WORDS, (number,)).fetchone()[0])

    def _drop_rows(self, first: int, last: int) -> None:
        for statement in _DROP:
            self._execute(statement, (first, last))
        self._execute(_WANT_NO_MORE, (self.tenant, first, last))

    def _save(self) -> tuple[Any, ...]:
        """Store the document's row, as it is found the next time."""
        title = self._title or (None, "")
        outline = packed(self._outline[each] for each in sorted(self._outline))
        row = self.tenant, self._made, *title, outline
        self._execute(_KEEP_INDEXED, (self._document, *row))
        return row

    def _later(self, statement: str, text: int, length: int, words: str) -> None:
        """Change the index of words before the commit: of a passage, or of the title."""
        before = term_of_title(self.tenant, "") if text == _TITLE else term(self.tenant, "")
        for count, line in enumerate(words.split("\n"), 1):
            if line:
                row = posting(self._first + text, count, length), before + line.replace(" ", f" {before}")
                self._writing.later.append((row[0], statement, row))


def _rows_of(words: str) -> int:
    """About how many rows a passage has: one for each line of its words, itself, a vector, and notes of two models."""
    return 4 + sum(map(bool, words.split("\n")))


def term(tenant: int, word: str) -> str:
    """A word of one tenant: nothing of another's is in the way of a search."""
    return f"{tenant:0{TENANT_DIGITS}x}{word}"


def term_of_title(tenant: int, word: str) -> str:
    """A word of a title: the number of no tenant begins like it."""
    return f"t{term(tenant, word)}"


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
