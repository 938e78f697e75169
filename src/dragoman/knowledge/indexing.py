"""What of a document goes into the index, for whatever engine the rows are of."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from dragoman.knowledge.index import Passage
from dragoman.knowledge.passages import passages_of
from dragoman.knowledge.port import Document

_encode = msgspec.json.encode


class IndexEntry(msgspec.Struct, frozen=True):
    """A passage that is to be found, and what tells whether it was there before."""

    hash: bytes
    passage: Passage
    title: str

    @property
    def text(self) -> str:
        """All that it is found by: the title, the headings and the text."""
        return whole_text(self.title, self.passage)


def is_found_otherwise(document: Document, before: Document) -> bool:
    """Whether a document may be found by something else than before."""
    return _found_by(document) != _found_by(before)


def entries_of(document: Document) -> list[IndexEntry]:
    """The passages of a document, in order."""
    title = document.title
    return [
        IndexEntry(blake2b(_encode((title, each.heading, each.text)), digest_size=16).digest(), each, title)
        for each in passages_of(document.mime_type, document.body)
    ]


def whole_text(title: str, passage: Passage) -> str:
    """What is searched, and embedded, of a passage."""
    return "\n".join((title, *passage.heading, passage.text))


def _found_by(document: Document) -> tuple[object, ...]:
    return document.title, document.mime_type, document.body, document.tags
