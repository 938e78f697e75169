"""Vectors of passages in memory, and embedders that do as they are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dragoman.errors import ModelUnavailable, TextRefused
from dragoman.knowledge.index import IndexStatus, WantedPassage


class ListedVectors:
    """Implements `PassageVectors` for passages that a test lists."""

    def __init__(self, passages: Iterable[str] = ()) -> None:
        self.passages = dict(enumerate(passages, 1))
        self.stored: dict[str, dict[int, bytes]] = {}
        self.put_off_for: dict[int, float] = {}

    async def wanted(self, model: str, limit: int) -> list[WantedPassage]:
        missing = self.passages.keys() - self.stored.get(model, {}).keys() - self.put_off_for.keys()
        return [WantedPassage(number, self.passages[number]) for number in sorted(missing)[:limit]]

    async def put(self, model: str, vectors: Mapping[int, bytes]) -> None:
        there = {number: vector for number, vector in vectors.items() if number in self.passages}
        self.stored.setdefault(model, {}).update(there)

    async def put_off(self, model: str, numbers: Sequence[int], seconds: float) -> None:
        self.put_off_for.update(dict.fromkeys(numbers, seconds))

    async def status(self, model: str, tenant: str | None = None) -> IndexStatus:
        return IndexStatus(len(self.passages), len(self.stored.get(model, ())))

    async def models(self) -> dict[str, int]:
        return {model: len(vectors) for model, vectors in self.stored.items() if vectors}

    async def forget(self, model: str, limit: int) -> int:
        gone = list(self.stored.get(model, {}))[:limit]
        for number in gone:
            del self.stored[model][number]
        return len(gone)


class CountingEmbedder:
    """Implements `Embedder`: the vector of a text is its bytes. It fails as often as `failures` says."""

    def __init__(self, model: str = "new", failures: int = 0, refuses: Iterable[str] = ()) -> None:
        self.model = model
        self.failures = failures
        self.refuses = {*refuses}
        self.batches: list[list[str]] = []

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        self.batches.append(list(texts))
        if self.failures:
            self.failures -= 1
            raise ModelUnavailable("not now")
        if self.refuses & {*texts}:
            raise TextRefused("not this")
        return [text.encode() for text in texts]
