"""What of a document goes into the index, for whatever engine the rows are of."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import chain, islice, zip_longest
from typing import Final, NamedTuple, TypeVar

import msgspec

from dragoman.knowledge.index import Passage
from dragoman.knowledge.passages import passages_of, size_of
from dragoman.knowledge.port import CreateDocument, Document, DocumentChange, Documents, UpdateDocument
from dragoman.knowledge.rows import MOST_BYTES
from dragoman.search.ranking import MOST_COUNT
from dragoman.search.words import all_words_in

T = TypeVar("T")

LONGEST_TITLE: Final = 240
"""Characters of a title or tag that are told with a passage."""
MOST_TITLE: Final = 65_536
"""Characters of a title that are searched. A title from before there was a limit may be longer."""
MOST_ABOVE: Final = 32
MOST_TAGS: Final = 100
"""Of a document, that are told with a passage of it, like the titles of so many documents above it."""
_LARGE = 32_768

_encode = msgspec.json.encode


class IndexEntry:
    """A passage that is to be found, what tells whether it was there before, and its words."""

    def __init__(self, passage: Passage) -> None:
        self.passage = passage

    @cached_property
    def hash(self) -> bytes:
        return _hash_of((self.passage.heading, self.passage.text))

    @cached_property
    def words(self) -> CountedWords:
        """Of the headings and the text. Those of the title are kept for all passages of a document together."""
        return CountedWords.of("\n".join((*self.passage.heading, self.passage.text)))

    def hash_with(self, title: str) -> bytes:
        """What an earlier version has kept, which indexed the title with each passage."""
        return _hash_of((title[:LONGEST_TITLE], self.passage.heading, self.passage.text))


class CountedWords(NamedTuple):
    """How many words a text has, and a line of those that occur once, one of those that occur twice, and so on."""

    length: int
    lines: str

    @classmethod
    def of(cls, text: str) -> CountedWords:
        found = all_words_in(text)
        lines: list[list[str]] = [[] for _ in range(MOST_COUNT)]
        for word, count in Counter(found).items():
            lines[min(count, MOST_COUNT) - 1].append(word)
        return cls(len(found), "\n".join([" ".join(line) for line in lines]).rstrip("\n"))


def has_other_text(document: Document, before: Document) -> bool:
    """Whether a document may have other passages than before."""
    return (document.mime_type, document.body) != (before.mime_type, before.body)


def is_found_otherwise(document: Document, before: Document) -> bool:
    """Whether a document may be found by something else than before."""
    return has_other_text(document, before) or (document.title, document.tags) != (before.title, before.tags)


def words_of_title(title: str) -> CountedWords:
    """The words that a document is found by because of its title."""
    return CountedWords.of(title[:MOST_TITLE])


def entries_of(mime_type: str, body: str) -> list[IndexEntry]:
    """What is kept of the passages of a document, in order."""
    return [IndexEntry(each) for each in passages_of(mime_type, body)]


def entries_ahead(mime_type: str, body: str) -> list[IndexEntry]:
    """The same with all that a transaction needs of them: others wait while that goes on."""
    entries = entries_of(mime_type, body)
    for each in entries:
        each.hash, each.words  # noqa: B018 - made now, and kept
    return entries


def _hash_of(parts: tuple[object, ...]) -> bytes:
    return blake2b(_encode(parts), digest_size=16).digest()


class CutAhead:
    """Passages of a large body, with their words, made before the transaction that needs them."""

    def __init__(self, mime_type: str = "", body: str = "", entries: Sequence[IndexEntry] = ()) -> None:
        self._content = mime_type, body
        self._entries = entries

    @classmethod
    async def of(cls, change: DocumentChange, tenant: str, documents: Documents) -> CutAhead:
        mime_type = body = None
        if isinstance(change, CreateDocument):
            mime_type, body = change.document.mime_type, change.document.body
        elif isinstance(change, UpdateDocument):
            mime_type, body = change.fields.get("content.mime_type"), change.fields.get("content.body")
        if not isinstance(body, str) or not _LARGE <= size_of(body) <= MOST_BYTES:
            return cls()  # A larger one is cut when it is indexed, after the commit.
        if mime_type is None and isinstance(change, UpdateDocument):
            document = await documents.get(tenant, change.id)
            mime_type = document.mime_type if document else ""
        return cls(str(mime_type), body, await asyncio.to_thread(entries_ahead, str(mime_type), body))

    def entries_of(self, document: Document) -> Sequence[IndexEntry]:
        content = document.mime_type, document.body
        return self._entries if self._entries and content == self._content else entries_of(*content)


def in_turns(waiting: Iterable[Iterable[T]], limit: int) -> list[T]:
    """The first of each, then the second of each, and so on."""
    turns = chain.from_iterable(zip_longest(*waiting))
    return list(islice((each for each in turns if each is not None), limit))


def beginning(text: str) -> str:
    """A title or a tag as it is told with a passage: each may be as long as a document."""
    return text if len(text) <= LONGEST_TITLE else f"{text[:LONGEST_TITLE]}…"


def text_for_vector(title: str, passage: Passage) -> str:
    """What is embedded of a passage: headings and text, or the title of a document without text."""
    return "\n".join((*passage.heading, passage.text)) if passage.text else title[:LONGEST_TITLE]
