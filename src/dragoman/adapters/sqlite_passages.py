"""The `PassageIndex` and the `PassageVectors` of `dragoman.db`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from heapq import nsmallest
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.adapters.sqlite_documents import SqliteDocuments
from dragoman.adapters.sqlite_leaving import Gone
from dragoman.adapters.sqlite_passage_rows import MADE_BITS, MOST_MADE, term, term_of_title
from dragoman.adapters.vector_cache import VectorCache, best
from dragoman.calls.places import Holder
from dragoman.clock import Clock
from dragoman.knowledge.index import FoundPassage, Hit, IndexStatus, Passage, PassageQuery, WantedPassage
from dragoman.knowledge.indexing import MOST_ABOVE, MOST_TAGS, beginning, in_turns, text_for_vector
from dragoman.knowledge.rows import MOST_ROWS
from dragoman.search.ranking import POSTING_BITS, posting, rank
from dragoman.search.titles import both, outline_of, packed, under

if TYPE_CHECKING:
    import sqlite3

    from dragoman.adapters.sqlite_writer import Transaction

_TENANT = "SELECT number, passages, words FROM passage_tenant WHERE name = ?"
_TAGGED = "SELECT document FROM passage_tag WHERE tenant = ? AND tag = ?"
_TEXTS_WITH = "SELECT doc FROM passage_term_count WHERE term = ?"
_LONGER = (
    "SELECT substr(term, ?), doc FROM passage_term_count WHERE term > ? AND term < ? ORDER BY doc DESC, term LIMIT ?"
)
# As one text: to fetch a hundred thousand rows takes five times as long.
_POSTINGS = "SELECT group_concat(rowid) FROM passage_term WHERE passage_term MATCH ?"
_TITLES = f"""
    SELECT passage_term.rowid, outline FROM passage_term
    JOIN passage_document ON document = passage_term.rowid >> {POSTING_BITS + MADE_BITS}
    WHERE passage_term MATCH ?
    """
_TITLE = "SELECT title_length, title_words FROM passage_document WHERE document = ?"
_WORDS = "SELECT length, words FROM passage WHERE number = ?"
_READ = f"""
    SELECT document.id, document.parent, document.title, passage.heading, passage.text, document.revision,
      document.tags, document.is_human_readable
    FROM passage JOIN document ON document.number = passage.number >> {MADE_BITS}
    WHERE passage.number = ? AND document.tenant = ?
    """
_ABOVE = f"""
    WITH RECURSIVE above (level, id, title, parent) AS (
      SELECT 0, id, title, parent FROM document WHERE tenant = ? AND id = ?
      UNION ALL
      SELECT above.level + 1, document.id, document.title, document.parent
      FROM above JOIN document ON document.tenant = ? AND document.id = above.parent
      WHERE above.level < {MOST_ABOVE - 1}
    )
    SELECT title FROM above ORDER BY level DESC
    """
_MODEL = "SELECT number FROM passage_model WHERE name = ?"
_ADD_MODEL = "INSERT INTO passage_model (name, noted) VALUES (?, -1)"
_NOTED = "SELECT noted FROM passage_model WHERE number = ?"
_SET_NOTED = "UPDATE passage_model SET noted = ? WHERE number = ?"
_TO_NOTE = f"""
    SELECT passage.number, tenant,
      EXISTS (SELECT 1 FROM passage_vector WHERE passage = passage.number AND model = ?)
    FROM passage CROSS JOIN passage_document ON document = passage.number >> {MADE_BITS}
    WHERE passage.number > ? ORDER BY passage.number LIMIT {MOST_ROWS // 2}
    """
_WANT = "INSERT OR IGNORE INTO passage_wanted (model, tenant, passage) VALUES (?, ?, ?)"
_NEXT_TENANT = """
    SELECT min(tenant) FROM passage_wanted WHERE model = ? AND tenant > ? AND tenant <= ? AND put_off_until <= ?
    """
_TENANT_NAME = "SELECT name FROM passage_tenant WHERE number = ?"
_WANTED = f"""
    SELECT passage.number, document.title, passage.heading, passage.text
    FROM passage_wanted JOIN passage ON passage.number = passage_wanted.passage
    JOIN document ON document.number = passage.number >> {MADE_BITS}
    WHERE passage_wanted.model = ? AND passage_wanted.tenant = ? AND put_off_until <= ?
    ORDER BY passage_wanted.passage
    """
_PUT = f"""
    INSERT OR IGNORE INTO passage_vector (model, tenant, passage, vector)
    SELECT ?, tenant, passage.number, ? FROM passage JOIN passage_document ON document = passage.number >> {MADE_BITS}
    WHERE passage.number = ?
    """
_IS_ABOUT = f"""
    model = ? AND tenant = (SELECT tenant FROM passage_document WHERE document = ? >> {MADE_BITS}) AND passage = ?
    """
_HAS = f"DELETE FROM passage_wanted WHERE {_IS_ABOUT}"
_PUT_OFF = f"UPDATE passage_wanted SET put_off_until = ? WHERE {_IS_ABOUT}"
_NEWER = """
    SELECT number, passage, vector FROM passage_vector
    WHERE model = ? AND tenant = ? AND number > ? AND length(vector) = ? ORDER BY number
    """
_HAS_VECTOR = "SELECT number, passage FROM passage_vector WHERE number IN"
_LACKS = "SELECT EXISTS (SELECT 1 FROM passage_missing WHERE tenant = ? AND is_found = 0)"
_IS_LACKING = "SELECT EXISTS (SELECT 1 FROM passage_missing WHERE document = ? AND is_found = 0)"
_LACKING = "SELECT count(*) FROM (SELECT 1 FROM passage_missing WHERE tenant = ? AND is_found = 0 LIMIT 1000)"
_AT_ONCE = 500
_MORE_TIMES = 8
"""As many hits are looked for if some of them are gone."""
_COUNT = "SELECT count(*) FROM passage_vector WHERE model = ? AND tenant = ?"
_MODELS = """
    SELECT name, (SELECT count(*) FROM passage_vector WHERE model = passage_model.number) FROM passage_model
    """
_FORGET = "DELETE FROM passage_vector WHERE number IN (SELECT number FROM passage_vector WHERE model = ? LIMIT ?)"
_FORGET_MODEL = (
    "DELETE FROM passage_wanted WHERE model = ?",
    "DELETE FROM passage_model WHERE number = ?",
)
_MOST_TIMES_KEPT, _MORE_KEPT = 2, 4096
_HIGHEST = 2**63 - 1
_LAST_CHARACTER = "\U0010ffff"

_decode_texts = msgspec.json.Decoder(tuple[str, ...]).decode


class SqlitePassages:
    """Implements `PassageIndex` and `PassageVectors`."""

    def __init__(
        self, database: SqliteDatabase, documents: SqliteDocuments, clock: Clock, vector_cache_bytes: int
    ) -> None:
        self._database = database
        self._documents = documents
        self._clock = clock
        self._last = 0
        """The last tenant whose passages were wanted."""
        self._cache = VectorCache(vector_cache_bytes)

    async def by_words(self, query: PassageQuery, text: str) -> list[Hit]:
        def read(connection: sqlite3.Connection) -> list[Hit]:
            words = TenantWords.find(connection, query)
            return [] if words is None else _by_words(words, text, query.limit, self._hidden(connection, query.tenant))

        return await self._database.read(read, query.holder)

    async def by_vector(self, query: PassageQuery, model: str, vector: bytes) -> list[Hit]:
        def read(connection: sqlite3.Connection) -> list[Hit]:
            return _by_vector(self._cache, query, model, vector, self._hidden(connection, query.tenant), connection)

        return await self._database.read(read, query.holder)

    async def read(self, tenant: str, numbers: Sequence[int], *, key: str = "") -> list[FoundPassage]:
        def read(connection: sqlite3.Connection) -> list[FoundPassage]:
            return [*_read(connection, tenant, numbers, self._hidden(connection, tenant))]

        return await self._database.read(read, Holder(tenant, key))

    async def catch_up(self, limit: int) -> int:
        return await self._documents.catch_up(limit)

    async def unindexed(self, tenant: str) -> int:
        def read(connection: sqlite3.Connection) -> int:
            return int(connection.execute(_LACKING, (tenant,)).fetchone()[0])

        return await self._database.read(read, Holder(tenant))

    async def wanted(self, model: str, limit: int) -> list[WantedPassage]:
        now = self._clock.now().timestamp()
        is_all = await self._database.read(partial(_is_noted, model))
        while True:
            is_all = is_all or await self._database.write(partial(_note_more, model), MOST_ROWS)
            last, rows = await self._database.read(partial(_wanted, model, limit, self._last, now))
            if is_all or len(rows) >= limit:
                break
        self._last = last
        return [
            WantedPassage(number, text_for_vector(title, Passage(_decode_texts(heading), text)))
            for number, title, heading, text in rows
        ]

    async def put_off(self, model: str, numbers: Sequence[int], seconds: float) -> None:
        until = self._clock.now().timestamp() + seconds

        def write(writing: Transaction) -> None:
            used = _number_of(writing, model)
            for number in numbers:
                writing.execute(_PUT_OFF, (until, used, number, number))

        await self._database.write(write)

    async def put(self, model: str, vectors: Mapping[int, bytes]) -> None:
        await self._database.write(partial(_put, model, vectors))

    async def status(self, model: str, tenant: str | None = None) -> IndexStatus:
        def read(connection: sqlite3.Connection) -> IndexStatus:
            names = connection.execute("SELECT number, name, passages FROM passage_tenant")
            tenants = [(number, passages) for number, name, passages in names if tenant in (None, name)]
            used = _number_of(connection, model)
            counts = [connection.execute(_COUNT, (used, number)).fetchone()[0] for number, _ in tenants]
            return IndexStatus(sum(passages for _, passages in tenants), sum(counts))

        return await self._database.read(read)

    async def models(self) -> dict[str, int]:
        return dict(await self._database.read(lambda connection: connection.execute(_MODELS).fetchall()))

    async def forget(self, model: str, limit: int) -> int:
        return await self._database.write(partial(_forget, model, limit))

    def _hidden(self, connection: sqlite3.Connection, tenant: str) -> _Hidden:
        return _Hidden(connection, tenant, self._clock.now().timestamp())


class _Hidden(Gone):
    """Which documents of a tenant are not found: those that are gone, and those with passages of an earlier text."""

    def __init__(self, connection: sqlite3.Connection, tenant: str, now: float) -> None:
        super().__init__(connection, tenant, now)
        self._lacks = bool(self._execute(_LACKS, (tenant,)).fetchone()[0])

    def has(self, number: int) -> bool:
        """Whether a document is not found, by its number."""
        return super().has(number) or (self._lacks and bool(self._execute(_IS_LACKING, (number,)).fetchone()[0]))


class TenantWords:
    """Implements `Postings` for one tenant, within one transaction."""

    def __init__(
        self, connection: sqlite3.Connection, tenant: int, texts: int, words: int, tags: frozenset[str]
    ) -> None:
        self._connection = connection
        self.tenant = tenant
        self._tags = tags
        self.texts = texts
        self.words = words

    @classmethod
    def find(cls, connection: sqlite3.Connection, query: PassageQuery) -> TenantWords | None:
        row = connection.execute(_TENANT, (query.tenant,)).fetchone()
        if row is None or not row[1]:  # There may be words of titles already, and no text yet.
            return None
        number, texts, words = row
        return cls(connection, number, texts, words, query.tags)

    @cached_property
    def documents(self) -> frozenset[int] | None:
        """The numbers of those that have all the tags; None if there are no tags."""
        found: frozenset[int] | None = None
        for tag in self._tags:  # One by one, as a statement cannot have a condition for each of a thousand tags.
            rows = self._connection.execute(_TAGGED, (self.tenant, tag))
            tagged = frozenset([number for (number,) in rows])
            found = tagged if found is None else found & tagged
            if not found:
                break
        return found

    def texts_with(self, word: str) -> int:
        found = [self._connection.execute(_TEXTS_WITH, (each,)).fetchone() for each in self._terms(word)]
        return min(sum([int(row[0]) for row in found if row]), self.texts)

    def longer_words(self, word: str, most: int) -> list[tuple[str, int]]:
        found: Counter[str] = Counter()
        for first in self._terms(word):
            values = len(first) - len(word) + 1, first, first + _LAST_CHARACTER, most
            found.update(dict(self._connection.execute(_LONGER, values).fetchall()))
        return nsmallest(most, found.items(), key=lambda each: (-each[1], each[0]))

    def postings(self, word: str) -> Iterable[int]:
        of_texts, of_title = self._terms(word)
        (found,) = self._connection.execute(_POSTINGS, (f'"{of_texts}"',)).fetchone()
        postings: Iterable[int] = map(int, found.split(",")) if found else ()
        titles = self._connection.execute(_TITLES, (f'"{of_title}"',)).fetchall()
        if titles:
            postings = _joined(postings, titles)
        documents = self.documents
        if documents is None:
            return postings
        return [each for each in postings if each >> POSTING_BITS + MADE_BITS in documents]

    def words_of(self, numbers: Sequence[int]) -> Iterator[tuple[int, Mapping[str, int]]]:
        for document, group in groupby(numbers, lambda number: number >> MADE_BITS):
            title = self._connection.execute(_TITLE, (document,)).fetchone()
            for number in group:
                length, lines = self._connection.execute(_WORDS, (number,)).fetchone()
                words = dict(_postings(number, length, lines))
                if title[0] is not None:
                    own = packed((outline_of(number & MOST_MADE, length),))
                    for word, posted in _postings(document << MADE_BITS, *title):
                        (joined,) = under(posted, own)
                        words[word] = both(words[word], joined) if word in words else joined
                yield number, words

    def _terms(self, word: str) -> tuple[str, str]:
        """The word in texts, and in titles."""
        return term(self.tenant, word), term_of_title(self.tenant, word)


def _postings(number: int, length: int, lines: str) -> Iterator[tuple[str, int]]:
    for count, line in enumerate(lines.split("\n"), 1):
        posted = posting(number, count, length)
        yield from ((word, posted) for word in line.split())


def _joined(texts: Iterable[int], titles: Sequence[tuple[int, bytes]]) -> Iterable[int]:
    """The postings of a word in passages, as if each had its title at the beginning."""
    found = {posted >> POSTING_BITS: posted for posted in texts}
    for title, outline in titles:
        for posted in under(title - (MOST_MADE << POSTING_BITS), outline):
            number = posted >> POSTING_BITS
            found[number] = both(found[number], posted) if number in found else posted
    return found.values()


def _by_words(words: TenantWords, text: str, limit: int, hidden: _Hidden) -> list[Hit]:
    most = limit
    while True:
        found = rank(words, text, most)
        hits = [Hit(number, score) for number, score in found if not hidden.has(number >> MADE_BITS)]
        if len(hits) >= limit or len(found) < most:
            return hits[:limit]
        most *= _MORE_TIMES


def _by_vector(
    cache: VectorCache, query: PassageQuery, model: str, vector: bytes, hidden: _Hidden, connection: sqlite3.Connection
) -> list[Hit]:
    words, number = TenantWords.find(connection, query), _number_of(connection, model)
    if words is None or number is None:
        return []
    key = words.tenant, number, len(vector)
    if cache.count(key) > _MOST_TIMES_KEPT * words.texts + _MORE_KEPT:  # Most of them are gone.
        cache.forget(key)

    def read_newer(last: int) -> Iterator[tuple[int, int, bytes]]:
        return connection.execute(_NEWER, (number, words.tenant, last, len(vector)))

    def may_find(passages: Any) -> Any:
        import numpy as np

        if words.documents is None:
            return slice(None)
        return np.isin(passages >> MADE_BITS, np.array(sorted(words.documents), np.int64))

    def those_there(vectors: list[int]) -> set[int]:
        there: set[int] = set()
        for begin in range(0, len(vectors), _AT_ONCE):
            some = vectors[begin : begin + _AT_ONCE]
            statement = f"{_HAS_VECTOR} ({', '.join('?' * len(some))})"
            rows = connection.execute(statement, some)
            there.update([each for each, passage in rows if not hidden.has(passage >> MADE_BITS)])
        return there

    scores = cache.scores(key, vector, read_newer, words.texts)
    found = best(scores, query.limit, may_find, those_there)
    return [Hit(*each) for each in found]


def _number_of(connection: sqlite3.Connection | Transaction, model: str) -> int | None:
    row = connection.execute(_MODEL, (model,)).fetchone()
    return row[0] if row else None


def _wanted(
    model: str, limit: int, last: int, now: float, connection: sqlite3.Connection
) -> tuple[int, list[tuple[Any, ...]]]:
    """The last of the tenants whose turn it is, of those behind `last` in a circle, and rows of their passages."""
    number, tenants = _number_of(connection, model), list[int]()
    for before, end in ((last, _HIGHEST), (0, last)):
        while before is not None and len(tenants) < limit:
            (before,) = connection.execute(_NEXT_TENANT, (number, before, end, now)).fetchone()
            tenants += [] if before is None else [before]
    waiting = []
    for tenant in tenants:
        hidden = _Hidden(connection, connection.execute(_TENANT_NAME, (tenant,)).fetchone()[0], now)
        rows = connection.execute(_WANTED, (number, tenant, now))
        waiting.append([*islice((row for row in rows if not hidden.has(row[0] >> MADE_BITS)), limit)])
    return (tenants or [last])[-1], in_turns(waiting, limit)


def _use_model(model: str, writing: Transaction) -> int:
    """Have new passages want vectors of a model, from now on; for the others that is noted in pieces."""
    number = _number_of(writing, model)
    if number is None:
        number = writing.execute(_ADD_MODEL, (model,)).lastrowid
    assert number is not None
    return number


def _is_noted(model: str, connection: sqlite3.Connection) -> bool:
    number = _number_of(connection, model)
    return number is not None and connection.execute(_NOTED, (number,)).fetchone() == (None,)


def _note_more(model: str, writing: Transaction) -> bool:
    """Note that some more passages want vectors; whether it is noted for all."""
    number = _use_model(model, writing)
    (noted,) = writing.execute(_NOTED, (number,)).fetchone()
    if noted is None:
        return True
    passages = writing.execute(_TO_NOTE, (number, noted)).fetchall()
    for passage, tenant, has_vector in passages:
        if not has_vector:
            writing.execute(_WANT, (number, tenant, passage))
    last = passages[-1][0] if len(passages) >= MOST_ROWS // 2 else None
    writing.execute(_SET_NOTED, (last, number))
    return last is None


def _put(model: str, vectors: Mapping[int, bytes], writing: Transaction) -> None:
    number = _use_model(model, writing)
    for passage, vector in vectors.items():
        writing.execute(_PUT, (number, vector, passage))
        writing.execute(_HAS, (number, passage, passage))


def _forget(model: str, limit: int, writing: Transaction) -> int:
    number = _number_of(writing, model)
    count = writing.execute(_FORGET, (number, limit)).rowcount
    if count < limit and number is not None:
        for statement in _FORGET_MODEL:
            writing.execute(statement, (number,))
    return count


def _read(
    connection: sqlite3.Connection, tenant: str, numbers: Sequence[int], hidden: _Hidden
) -> Iterator[FoundPassage]:
    paths: dict[str, tuple[str, ...]] = {}
    for number in numbers:
        row = connection.execute(_READ, (number, tenant)).fetchone()
        if row is None or hidden.has(number >> MADE_BITS):
            continue
        id, parent, title, heading, text, revision, tags, is_human_readable = row
        if parent not in paths:
            above = connection.execute(_ABOVE, (tenant, parent, tenant))
            paths[parent] = tuple([beginning(each) for (each,) in above])
        yield FoundPassage(
            number=number,
            document_id=id,
            title=beginning(title),
            path=paths[parent],
            heading=_decode_texts(heading),
            text=text,
            revision=revision,
            tags=tuple(map(beginning, _decode_texts(tags)[:MOST_TAGS])),
            is_human_readable=bool(is_human_readable),
        )
