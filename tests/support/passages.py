"""An index of a few passages that does as it is told, an embedder, and a model, each of which can be held up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from dragoman.knowledge.answering import Tell
from dragoman.knowledge.index import FoundPassage, Hit, PassageQuery


def passage(number: int, text: str | None = None, **fields: Any) -> FoundPassage:
    """A passage with most of it filled in."""
    given = {
        "document_id": f"{number:08}-0000-4000-8000-000000000000",
        "title": f"Title {number}",
        "path": (),
        "heading": (),
        "text": f"Text {number}" if text is None else text,
        "revision": 1,
        "tags": (),
        "is_human_readable": True,
        **fields,
    }
    return FoundPassage(number=number, **given)


class FewPassages:
    """Implements `PassageIndex`: words are found in the order of their numbers, and vectors as they are listed."""

    def __init__(self, *passages: FoundPassage, alike: Sequence[Hit] = ()) -> None:
        self.passages = {each.number: each for each in passages}
        self.alike = list(alike)
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[PassageQuery] = []

    async def by_words(self, query: PassageQuery, text: str) -> list[Hit]:
        self.asked.append(query)
        await self.gate.wait()
        words = set(text.casefold().split())
        found = [each for each in self.passages.values() if words & set(each.text.casefold().split())]
        return [Hit(each.number, 1.0) for each in found][: query.limit]

    async def by_vector(self, query: PassageQuery, model: str, vector: bytes) -> list[Hit]:
        return self.alike

    async def read(self, tenant: str, numbers: Sequence[int], *, key: str = "") -> list[FoundPassage]:
        return [self.passages[number] for number in numbers if number in self.passages]

    async def catch_up(self, limit: int) -> int:
        return 0

    async def unindexed(self, tenant: str) -> int:
        return 0


class Held:
    """An embedder and a model: each waits for the gate, and then answers, or fails."""

    model = "held"

    def __init__(self, answer: str = "", error: Exception | None = None) -> None:
        self.gate = asyncio.Event()
        self.answer = answer
        self.error = error
        self.waiting = 0
        self.sent: list[Sequence[dict[str, str]]] = []

    async def get(self) -> Held:
        """Itself, as the embedder that is searched by."""
        return self

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        await self._wait()
        return [b""] * len(texts)

    async def write(self, messages: Sequence[dict[str, str]], tell: Tell) -> str:
        self.sent.append(messages)
        await self._wait()
        for count in range(len(self.answer)):
            tell(count)
        return self.answer

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        if self.error is not None:
            raise self.error
