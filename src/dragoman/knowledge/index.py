"""The ports to the index of passages: pieces of documents, found by their words and by vectors.

1. The words of a document, and the note that its passages want vectors, are written in the transaction of the change
   itself: what is committed is found, and what is deleted is not. A text above 256 KB is noted as missing there, and
   is indexed afterwards, in pieces; until that is done its document is not found, and a search can say so.
2. Nothing of one tenant's has an influence on what another one finds, or on how it is scored.
3. Reading takes a share of what all tenants share: of the tenant's, and in it of the `Holder`'s `key`.
4. Vectors follow behind. One belongs to a model; vectors of different models are never compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from dragoman.calls.places import Holder


class Passage(Struct, frozen=True):
    """A piece of a document that is found as a whole."""

    heading: tuple[str, ...]
    """The headings that it stands under, from the outermost on; those of JSON are the names of members."""
    text: str


class PassageQuery(Struct, frozen=True, kw_only=True):
    """Which passages may be found, and how many."""

    tenant: str
    tags: frozenset[str] = frozenset()
    """Only in documents that have all of these."""
    limit: int
    key: str = ""
    """For whom in the tenant: see `Holder`."""

    @property
    def holder(self) -> Holder:
        return Holder(self.tenant, self.key)


class Hit(Struct, frozen=True):
    """A passage that was found. Hits are in descending order of their score; ties are in the order of their numbers."""

    number: int
    score: float


class FoundPassage(Struct, frozen=True, kw_only=True):
    """A passage, and the document that it is of as that stands now.

    Titles and tags that are very long are cut off, and there are not more than a hundred tags.
    """

    number: int
    document_id: str
    title: str
    path: tuple[str, ...]
    """The titles of the documents above, from the top of the tree on; of the nearest ones in a deep tree."""
    heading: tuple[str, ...]
    text: str
    revision: int
    tags: tuple[str, ...]
    is_human_readable: bool


class PassageIndex(Protocol):
    """Finds passages. Every method raises `StorageError`s."""

    async def by_words(self, query: PassageQuery, text: str) -> list[Hit]:
        """The passages with words of `text`, scored by BM25 over the tenant's own passages. None for no words.

        A score is from 0 to 1: how much of `text` a passage covers, where rare words count more.
        """
        ...

    async def by_vector(self, query: PassageQuery, model: str, vector: bytes) -> list[Hit]:
        """The passages whose vectors are most alike, by cosine. Passages without a vector of `model` are not found."""
        ...

    async def read(self, tenant: str, numbers: Sequence[int], *, key: str = "") -> list[FoundPassage]:
        """Passages by their numbers, in this order; those that are gone are left out."""
        ...

    async def catch_up(self, limit: int) -> int:
        """Index documents that are missing, of one tenant and at most `limit`; how many those were.

        They are written in pieces, each in a transaction of its own.
        """
        ...

    async def unindexed(self, tenant: str) -> int:
        """How many documents are not found because they are missing; a thousand if there are more."""
        ...


class WantedPassage(Struct, frozen=True):
    """A passage without a vector."""

    number: int
    text: str
    """To be embedded: the title, the headings and the text."""


class IndexStatus(Struct, frozen=True):
    """How far the vectors of one model have come."""

    passages: int
    with_vector: int


class PassageVectors(Protocol):
    """Keeps the vectors of passages. Every method raises `StorageError`s.

    A vector is of unit length: numbers of 32 bits, the lowest byte first.
    """

    async def wanted(self, model: str, limit: int) -> list[WantedPassage]:
        """Passages without a vector of `model`, that are not put off. From now on new ones are noted.

        The tenants take turns; of each, those of the oldest documents come first.
        """
        ...

    async def put_off(self, model: str, numbers: Sequence[int], seconds: float) -> None:
        """Do not want vectors of some passages for so long."""
        ...

    async def put(self, model: str, vectors: Mapping[int, bytes]) -> None:
        """Store vectors by the numbers of their passages; those of passages that are gone are dropped."""
        ...

    async def status(self, model: str, tenant: str | None = None) -> IndexStatus:
        """Of one tenant, or of all."""
        ...

    async def models(self) -> dict[str, int]:
        """The models that passages have vectors of, or want some of, and how many vectors there are of each."""
        ...

    async def forget(self, model: str, limit: int) -> int:
        """Remove vectors of a model, at most `limit`; how many those were."""
        ...
