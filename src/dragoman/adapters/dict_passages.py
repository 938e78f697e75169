"""The `PassageIndex` and the `PassageVectors` of a process that keeps nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import count, islice

from dragoman.adapters.dict_documents import DictDocuments
from dragoman.adapters.dict_passage_rows import Shelf
from dragoman.adapters.vector_cache import VectorCache, best
from dragoman.clock import Clock
from dragoman.knowledge.index import FoundPassage, Hit, IndexStatus, PassageQuery, WantedPassage
from dragoman.knowledge.indexing import MOST_ABOVE, MOST_TAGS, beginning, in_turns
from dragoman.knowledge.port import ROOT
from dragoman.search.ranking import POSTING_BITS, rank


class DictPassages:
    """Implements `PassageIndex` and `PassageVectors`."""

    def __init__(self, documents: DictDocuments, clock: Clock) -> None:
        self._documents = documents
        self._clock = clock
        self._turns = count()

    async def by_words(self, query: PassageQuery, text: str) -> list[Hit]:
        self._documents.delete_due()
        found = rank(_Filtered(self._documents, query), text, query.limit)
        return [Hit(number, score) for number, score in found]

    async def by_vector(self, query: PassageQuery, model: str, vector: bytes) -> list[Hit]:
        self._documents.delete_due()
        shelf, vectors = _Filtered(self._documents, query), self._vectors(model)
        rows = [
            (number, number, vectors[number])
            for number in shelf.passages
            if len(vectors.get(number, b"")) == len(vector) and shelf.may_find(number)
        ]
        scores = VectorCache(0).scores((0, 0, len(vector)), vector, lambda _: rows)  # It is in memory anyway.
        found = best(scores, query.limit, lambda _: slice(None), lambda numbers: numbers)
        return [Hit(*each) for each in found]

    async def read(self, tenant: str, numbers: Sequence[int]) -> list[FoundPassage]:
        self._documents.delete_due()
        shelf = shelf_of(self._documents, tenant)
        return [_found(self._documents, shelf, tenant, number) for number in numbers if number in shelf.passages]

    async def catch_up(self, limit: int) -> int:
        return 0

    async def wanted(self, model: str, limit: int) -> list[WantedPassage]:
        vectors = self._documents.rows.passages.vectors.setdefault(model, {})
        put_off, now = self._documents.rows.passages.put_off.get(model, {}), self._clock.now().timestamp()
        waiting = [
            nsmallest(limit, (each for each in shelf.passages if each not in vectors and put_off.get(each, 0.0) <= now))
            for shelf in self._shelves.values()
        ]
        turn = next(self._turns) % max(len(waiting), 1)
        texts = {number: each.text for shelf in self._shelves.values() for number, each in shelf.passages.items()}
        return [WantedPassage(number, texts[number]) for number in in_turns((*waiting[turn:], *waiting[:turn]), limit)]

    async def put_off(self, model: str, numbers: Sequence[int], seconds: float) -> None:
        until = self._clock.now().timestamp() + seconds
        self._documents.rows.passages.put_off.setdefault(model, {}).update(dict.fromkeys(numbers, until))

    async def put(self, model: str, vectors: Mapping[int, bytes]) -> None:
        there = {number for shelf in self._shelves.values() for number in shelf.passages}
        kept = self._documents.rows.passages.vectors.setdefault(model, {})
        for number in vectors.keys() & there:
            kept.setdefault(number, vectors[number])

    async def status(self, model: str, tenant: str | None = None) -> IndexStatus:
        vectors = self._vectors(model)
        numbers = [each for name, shelf in self._shelves.items() if tenant in (None, name) for each in shelf.passages]
        return IndexStatus(len(numbers), sum(number in vectors for number in numbers))

    async def models(self) -> dict[str, int]:
        return {model: len(kept) for model, kept in self._documents.rows.passages.vectors.items()}

    async def forget(self, model: str, limit: int) -> int:
        vectors = self._vectors(model)
        gone = [*islice(vectors, limit)]
        for number in gone:
            del vectors[number]
        if len(gone) < limit:
            self._documents.rows.passages.vectors.pop(model, None)
        return len(gone)

    @property
    def _shelves(self) -> Mapping[str, Shelf]:
        return self._documents.rows.passages.shelves

    def _vectors(self, model: str) -> dict[int, bytes]:
        return self._documents.rows.passages.vectors.get(model, {})


class _Filtered(Shelf):
    """A tenant's passages, of which only those in documents with some tags are found."""

    def __init__(self, documents: DictDocuments, query: PassageQuery) -> None:
        self.__dict__.update(shelf_of(documents, query.tenant).__dict__)
        self._documents = documents
        self._query = query

    def postings(self, word: str) -> Iterable[int]:
        found = super().postings(word)
        return [each for each in found if self.may_find(each >> POSTING_BITS)] if self._query.tags else found

    def may_find(self, number: int) -> bool:
        document = self._documents.rows.document(self._query.tenant, self.passages[number].document_id)
        return document is not None and self._query.tags <= {*document.tags}


def shelf_of(documents: DictDocuments, tenant: str) -> Shelf:
    """The index of a tenant's passages; an empty one for a tenant without documents."""
    return documents.rows.passages.shelves.get(tenant) or Shelf()


def _found(documents: DictDocuments, shelf: Shelf, tenant: str, number: int) -> FoundPassage:
    kept = shelf.passages[number]
    document = documents.rows.document(tenant, kept.document_id)
    assert document is not None
    path: list[str] = []
    above = document.parent
    while above != ROOT and len(path) < MOST_ABOVE:
        parent = documents.rows.document(tenant, above)
        assert parent is not None
        path.append(beginning(parent.title))
        above = parent.parent
    return FoundPassage(
        number=number,
        document_id=document.id,
        title=beginning(document.title),
        path=tuple(reversed(path)),
        heading=kept.passage.heading,
        text=kept.passage.text,
        revision=document.revision,
        tags=tuple(map(beginning, document.tags[:MOST_TAGS])),
        is_human_readable=document.is_human_readable,
    )
