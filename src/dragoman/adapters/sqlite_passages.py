"""The `PassageIndex` of `dragoman.db`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from dragoman.adapters.sqlite_documents import SqliteDocuments
from dragoman.adapters.sqlite_passage_rows import MADE_BITS, term
from dragoman.knowledge.index import FoundPassage, Hit, PassageQuery
from dragoman.search.ranking import POSTING_BITS, posting, rank

if TYPE_CHECKING:
    import sqlite3

_TENANT = "SELECT number, passages, words FROM passage_tenant WHERE name = ?"
_TAGGED = "SELECT document FROM passage_tag WHERE tenant = ? AND tag = ?"
_HAS_TAG = """
    EXISTS (
      SELECT 1 FROM passage_tag AS other
      WHERE other.tenant = passage_tag.tenant AND other.tag = ? AND other.document = passage_tag.document
    )
    """
_TEXTS_WITH = "SELECT doc FROM passage_term_count WHERE term = ?"
_LONGER = (
    "SELECT substr(term, ?), doc FROM passage_term_count WHERE term > ? AND term < ? ORDER BY doc DESC, term LIMIT ?"
)
# As one text: to fetch a hundred thousand rows takes five times as long.
_POSTINGS = "SELECT group_concat(rowid) FROM passage_term WHERE passage_term MATCH ?"
_WORDS = "SELECT length, words FROM passage WHERE number = ?"
_READ = f"""
    SELECT document.id, document.parent, document.title, passage.heading, passage.text, document.revision,
      document.tags, document.is_human_readable
    FROM passage JOIN document ON document.number = passage.number >> {MADE_BITS}
    WHERE passage.number = ? AND document.tenant = ?
    """
_ABOVE = """
    WITH RECURSIVE above (level, id, title, parent) AS (
      SELECT 0, id, title, parent FROM document WHERE tenant = ? AND id = ?
      UNION ALL
      SELECT above.level + 1, document.id, document.title, document.parent
      FROM above JOIN document ON document.tenant = ? AND document.id = above.parent
    )
    SELECT title FROM above ORDER BY level DESC
    """
_LAST_CHARACTER = "\U0010ffff"

_decode_texts = msgspec.json.Decoder(tuple[str, ...]).decode


class SqlitePassages:
    """Implements `PassageIndex`."""

    def __init__(self, documents: SqliteDocuments) -> None:
        self._documents = documents

    async def by_words(self, query: PassageQuery, text: str) -> list[Hit]:
        def read(connection: sqlite3.Connection) -> list[Hit]:
            words = TenantWords.find(connection, query)
            return [] if words is None else [Hit(*found) for found in rank(words, text, query.limit)]

        return await self._documents.read_tree(read)

    async def read(self, tenant: str, numbers: Sequence[int]) -> list[FoundPassage]:
        return await self._documents.read_tree(lambda connection: [*_read(connection, tenant, numbers)])

    async def catch_up(self, limit: int) -> int:
        return await self._documents.catch_up(limit)


class TenantWords:
    """Implements `Postings` for one tenant, within one transaction."""

    def __init__(
        self, connection: sqlite3.Connection, tenant: int, texts: int, words: int, tags: frozenset[str]
    ) -> None:
        self._connection = connection
        self._tenant = tenant
        self._tags = tags
        self.texts = texts
        self.words = words

    @classmethod
    def find(cls, connection: sqlite3.Connection, query: PassageQuery) -> TenantWords | None:
        row = connection.execute(_TENANT, (query.tenant,)).fetchone()
        if row is None:
            return None
        number, texts, words = row
        return cls(connection, number, texts, words, query.tags)

    @cached_property
    def documents(self) -> frozenset[int] | None:
        """The numbers of those that have all the tags; None if there are no tags."""
        if not self._tags:
            return None
        tags = sorted(self._tags)
        statement = " AND ".join([_TAGGED, *([_HAS_TAG] * (len(tags) - 1))])
        rows = self._connection.execute(statement, (self._tenant, *tags))
        return frozenset([number for (number,) in rows])

    def texts_with(self, word: str) -> int:
        row = self._connection.execute(_TEXTS_WITH, (term(self._tenant, word),)).fetchone()
        return row[0] if row else 0

    def longer_words(self, word: str, most: int) -> list[tuple[str, int]]:
        first = term(self._tenant, word)
        values = len(first) - len(word) + 1, first, first + _LAST_CHARACTER, most
        return self._connection.execute(_LONGER, values).fetchall()

    def postings(self, word: str) -> Iterable[int]:
        (found,) = self._connection.execute(_POSTINGS, (f'"{term(self._tenant, word)}"',)).fetchone()
        postings = map(int, found.split(",")) if found else ()
        documents = self.documents
        if documents is None:
            return postings
        return [each for each in postings if each >> POSTING_BITS + MADE_BITS in documents]

    def words_of(self, numbers: Sequence[int]) -> Iterator[tuple[int, Mapping[str, int]]]:
        for number in numbers:
            length, words = self._connection.execute(_WORDS, (number,)).fetchone()
            yield (
                number,
                {
                    word: posted
                    for count, line in enumerate(words.split("\n"), 1)
                    for posted in (posting(number, count, length),)
                    for word in line.split()
                },
            )


def _read(connection: sqlite3.Connection, tenant: str, numbers: Sequence[int]) -> Iterator[FoundPassage]:
    paths: dict[str, tuple[str, ...]] = {}
    for number in numbers:
        row = connection.execute(_READ, (number, tenant)).fetchone()
        if row is None:
            continue
        id, parent, title, heading, text, revision, tags, is_human_readable = row
        if parent not in paths:
            paths[parent] = tuple([title for (title,) in connection.execute(_ABOVE, (tenant, parent, tenant))])
        yield FoundPassage(
            number=number,
            document_id=id,
            title=title,
            path=paths[parent],
            heading=_decode_texts(heading),
            text=text,
            revision=revision,
            tags=_decode_texts(tags),
            is_human_readable=bool(is_human_readable),
        )
