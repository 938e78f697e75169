"""The passages of a process that keeps nothing: dictionaries, one shelf for each tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import count, takewhile

from msgspec import Struct

from dragoman.adapters.dict_index import SortedRuns
from dragoman.knowledge.index import Passage
from dragoman.knowledge.indexing import CutAhead, IndexEntry, entries_of
from dragoman.knowledge.port import Document
from dragoman.search.ranking import posting
from dragoman.search.words import all_words_in


class KeptPassage(Struct, frozen=True):
    """A passage, and what it is found by."""

    document_id: str
    hash: bytes
    passage: Passage
    text: str
    """The title, the headings and the text."""
    length: int
    words: Mapping[str, int]
    """The posting of each."""


class Shelf:
    """The passages of one tenant. Implements `Postings`, except for what depends on a query."""

    def __init__(self) -> None:
        self.passages: dict[int, KeptPassage] = {}
        self.of_document: dict[str, list[int]] = {}
        self.words = 0
        self._postings: dict[str, set[int]] = {}
        self._vocabulary: SortedRuns[str] = SortedRuns()

    @property
    def texts(self) -> int:
        return len(self.passages)

    def texts_with(self, word: str) -> int:
        return len(self._postings.get(word, ()))

    def longer_words(self, word: str, most: int) -> list[tuple[str, int]]:
        if not self._postings:
            return []
        found = takewhile(lambda each: each.startswith(word), self._vocabulary.upwards(word))
        counted = [(each, self.texts_with(each)) for each in found if each != word]
        return nsmallest(most, counted, key=lambda each: (-each[1], each[0]))

    def postings(self, word: str) -> Iterable[int]:
        return self._postings.get(word, ())

    def words_of(self, numbers: Sequence[int]) -> Iterator[tuple[int, Mapping[str, int]]]:
        return ((number, self.passages[number].words) for number in numbers)

    def add(self, number: int, document_id: str, entry: IndexEntry) -> None:
        found = all_words_in(entry.text)
        words = {word: posting(number, many, len(found)) for word, many in Counter(found).items()}
        self.passages[number] = KeptPassage(document_id, entry.hash, entry.passage, entry.text, len(found), words)
        self.words += len(found)
        for word, posted in words.items():
            if word not in self._postings:
                self._postings[word] = set()
                self._vocabulary.add(word)
            self._postings[word].add(posted)

    def drop(self, number: int) -> None:
        kept = self.passages.pop(number)
        self.words -= kept.length
        for word, posted in kept.words.items():
            self._postings[word].remove(posted)
            if not self._postings[word]:
                del self._postings[word]
                self._vocabulary.take(word)


class PassageShelves:
    """The passages of all tenants."""

    def __init__(self) -> None:
        self.shelves: dict[str, Shelf] = {}
        self.vectors: dict[str, dict[int, bytes]] = {}
        """By model and number."""
        self.put_off: dict[str, dict[int, float]] = {}
        """In the same way, until when."""
        self.cut = CutAhead()
        """Of the change that is being made."""
        self._numbers = count(1)

    def index(self, document: Document) -> None:
        """Make the passages of a document those of its present state."""
        entries = entries_of(document.title, self.cut.passages_of(document))
        self._change(self.shelves.setdefault(document.tenant, Shelf()), document.id, entries)

    def forget(self, tenant: str, id: str) -> None:
        """Remove everything by which a document is found."""
        shelf = self.shelves[tenant]
        self._change(shelf, id, ())
        if not shelf.passages:
            del self.shelves[tenant]

    def _change(self, shelf: Shelf, id: str, entries: Iterable[IndexEntry]) -> None:
        old: dict[bytes, list[int]] = {}
        for number in shelf.of_document.pop(id, ()):
            old.setdefault(shelf.passages[number].hash, []).append(number)
        numbers = []
        for entry in entries:
            if kept := old.get(entry.hash):
                numbers.append(kept.pop())
            else:
                numbers.append(next(self._numbers))
                shelf.add(numbers[-1], id, entry)
        for number in [number for gone in old.values() for number in gone]:
            shelf.drop(number)
            for known in (*self.vectors.values(), *self.put_off.values()):
                known.pop(number, None)  # type: ignore[attr-defined]
        if numbers:
            shelf.of_document[id] = numbers
