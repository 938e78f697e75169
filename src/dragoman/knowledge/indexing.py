"""What of a document goes into the index, for whatever engine the rows are of."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import chain, islice, zip_longest
from typing import Final, TypeVar

import msgspec

from dragoman.knowledge.index import Passage
from dragoman.knowledge.passages import passages_of, size_of
from dragoman.knowledge.port import CreateDocument, Document, DocumentChange, Documents, UpdateDocument
from dragoman.knowledge.rows import MOST_BYTES
from dragoman.search.ranking import MOST_COUNT
from dragoman.search.words import all_words_in

T = TypeVar("T")

LONGEST_TITLE: Final = 240
"""Characters of a title that each passage is found by. A longer one has passages of its own."""
MOST_ABOVE: Final = 32
MOST_TAGS: Final = 100
"""Of a document, that are told with a passage of it, like the titles of so many documents above it."""
_LARGE = 32_768

_encode = msgspec.json.encode


class IndexEntry:
    """A passage that is to be found, what tells whether it was there before, and its words."""

    def __init__(self, title: str, passage: Passage) -> None:
        self.passage = passage
        self.title = title

    @cached_property
    def hash(self) -> bytes:
        return blake2b(_encode((self.title, self.passage.heading, self.passage.text)), digest_size=16).digest()

    @cached_property
    def words(self) -> tuple[int, str]:
        """How many words it has, and these: a line for those that occur once, one for those that do twice, and so on.

        They are those of all that it is found by: the title, the headings and the text.
        """
        found = all_words_in(whole_text(self.title, self.passage))
        lines: list[list[str]] = [[] for _ in range(MOST_COUNT)]
        for word, count in Counter(found).items():
            lines[min(count, MOST_COUNT) - 1].append(word)
        return len(found), "\n".join([" ".join(line) for line in lines]).rstrip("\n")


def is_found_otherwise(document: Document, before: Document) -> bool:
    """Whether a document may be found by something else than before."""
    return _found_by(document) != _found_by(before)


def entries_of(title: str, passages: Iterable[Passage]) -> list[IndexEntry]:
    """What is kept of the passages of a document with this title, in order."""
    own = passages_of("text/plain", title) if len(title) > LONGEST_TITLE else ()
    title = title[:LONGEST_TITLE]
    return [IndexEntry(title, each) for each in (*own, *passages)]


class CutAhead:
    """Passages of a large body, made before the transaction that needs them: that takes longer than
    others should wait."""

    def __init__(self, mime_type: str = "", body: str = "", passages: Sequence[Passage] = ()) -> None:
        self._content = mime_type, body
        self._passages = passages

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
        return cls(str(mime_type), body, await asyncio.to_thread(passages_of, str(mime_type), body))

    def passages_of(self, document: Document) -> Sequence[Passage]:
        content = document.mime_type, document.body
        return self._passages if self._passages and content == self._content else passages_of(*content)


def in_turns(waiting: Iterable[Iterable[T]], limit: int) -> list[T]:
    """The first of each, then the second of each, and so on."""
    turns = chain.from_iterable(zip_longest(*waiting))
    return list(islice((each for each in turns if each is not None), limit))


def beginning(text: str) -> str:
    """A title or a tag as it is told with a passage: each may be as long as a document."""
    return text if len(text) <= LONGEST_TITLE else f"{text[:LONGEST_TITLE]}…"


def whole_text(title: str, passage: Passage) -> str:
    """What is searched, and embedded, of a passage."""
    return "\n".join((title[:LONGEST_TITLE], *passage.heading, passage.text))


def _found_by(document: Document) -> tuple[object, ...]:
    return document.title, document.mime_type, document.body, document.tags
