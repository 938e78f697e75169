"""The `PassageIndex` of a process that keeps nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dragoman.adapters.dict_documents import DictDocuments
from dragoman.adapters.dict_passage_rows import Shelf
from dragoman.knowledge.index import FoundPassage, Hit, PassageQuery
from dragoman.knowledge.port import ROOT
from dragoman.search.ranking import POSTING_BITS, rank


class DictPassages:
    """Implements `PassageIndex`."""

    def __init__(self, documents: DictDocuments) -> None:
        self._documents = documents

    async def by_words(self, query: PassageQuery, text: str) -> list[Hit]:
        self._documents.delete_due()
        found = rank(_Filtered(self._documents, query), text, query.limit)
        return [Hit(number, score) for number, score in found]

    async def read(self, tenant: str, numbers: Sequence[int]) -> list[FoundPassage]:
        self._documents.delete_due()
        shelf = shelf_of(self._documents, tenant)
        return [_found(self._documents, shelf, tenant, number) for number in numbers if number in shelf.passages]

    async def catch_up(self, limit: int) -> int:
        return 0


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
    return documents.rows.passages.shelves.get(tenant) or Shelf()


def _found(documents: DictDocuments, shelf: Shelf, tenant: str, number: int) -> FoundPassage:
    kept = shelf.passages[number]
    document = documents.rows.document(tenant, kept.document_id)
    assert document is not None
    path: list[str] = []
    above = document.parent
    while above != ROOT:
        parent = documents.rows.document(tenant, above)
        assert parent is not None
        path.append(parent.title)
        above = parent.parent
    return FoundPassage(
        number=number,
        document_id=document.id,
        title=document.title,
        path=tuple(reversed(path)),
        heading=kept.passage.heading,
        text=kept.passage.text,
        revision=document.revision,
        tags=document.tags,
        is_human_readable=document.is_human_readable,
    )
