"""How well documents are found, by labelled questions about Python's own reference: `make retrieval`.

1. The texts of `pydoc_data.topics` are documents of one tenant, in a SQLite storage in a temporary folder.
2. A ranking is of documents: each has the rank of its best passage.
3. Both together are measured twice: as `knowledge.query_knowledge` answers, and with weights chosen on other questions.
   Questions that are held back have a table of their own, and choose nothing.
4. Nothing is timed. Exits with 1 if both together, with weights chosen on other questions, are worse than the better
   one alone by more than `ALLOWANCE`, or are better in nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct

from bench.questions import TEXTS, Question, load_questions, title_of
from bench.ranking import FIRST, Quality, best_setting, held_out, mean_of, quality_of
from dragoman.adapters.embedders import ChosenEmbedders
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.clock import SystemClock
from dragoman.knowledge.embedding import Embedder, GetEmbedder
from dragoman.knowledge.fusing import SMOOTHING, VECTORS_WEIGHT, WORDS_WEIGHT, Ranked, fuse
from dragoman.knowledge.index import Hit, PassageIndex, PassageQuery, PassageVectors
from dragoman.knowledge.migrations import MIGRATIONS
from dragoman.knowledge.part import catch_up
from dragoman.knowledge.port import Documents
from dragoman.knowledge.querying import CANDIDATES, LEAST_ALIKE, KnowledgeQuery, Queries
from dragoman.knowledge.settings import KnowledgeConfig
from dragoman.storage.port import Storage
from dragoman.storage.settings import StorageConfig
from tests.support.document_entries import ACME, Tree, asked

ALLOWANCE: Final = 0.02
WORDS, VECTORS = "words alone", "vectors alone"
HELD_OUT, AS_SHIPPED = "both, weights chosen on other questions", "both, as shipped"
_PLENTY_MS = 60_000
_BATCH = 32
_WORDS_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
_SMOOTHINGS = (2, 5, 10, 20, 60)

Setting: TypeAlias = tuple[float, int]
"""The weight of words, where that of vectors is 1; and the smoothing."""
SHIPPED: Final[Setting] = (WORDS_WEIGHT / VECTORS_WEIGHT, SMOOTHING)


class Found(Struct, frozen=True):
    """What was found for one question."""

    question: Question
    words: list[Hit]
    vectors: list[Hit]
    answered: list[str]
    """The documents of the passages in the answer to the action."""
    documents: Mapping[int, str]
    """By the numbers of their passages."""

    def quality(self, hits: Sequence[Hit]) -> Quality:
        return self.quality_of([self.documents[hit.number] for hit in hits])

    def quality_of(self, documents: Sequence[str]) -> Quality:
        return quality_of(list(dict.fromkeys(documents)), self.question.topics)

    def fused(self, setting: Setting) -> Quality:
        weight, smoothing = setting
        lists = Ranked(self.words, weight, by_score=True), Ranked(self.vectors, 1.0)
        return self.quality(fuse(*lists, smoothing=smoothing))


@asynccontextmanager
async def imported_topics(folder: Path) -> AsyncIterator[Storage]:
    """A storage with a document for each topic; its id is the topic's name."""
    storage = SqliteStorage(StorageConfig(data_dir=str(folder)), SystemClock(), MIGRATIONS)
    try:
        tree = Tree(storage.port(Documents))
        for name, text in sorted(TEXTS.items()):
            await tree.create(name, title=title_of(name), body=text)
        await catch_up(storage.port(PassageIndex))
        yield storage
    finally:
        await storage.close()


async def embed_all(vectors: PassageVectors, embedder: Embedder) -> None:
    """Give every passage a vector."""
    while wanted := await vectors.wanted(embedder.model, _BATCH):
        made = await embedder.embed([each.text for each in wanted])
        await vectors.put(embedder.model, dict(zip((each.number for each in wanted), made, strict=True)))
        status = await vectors.status(embedder.model)
        print(f"\r{status.with_vector} of {status.passages} passages embedded", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def _always(embedder: Embedder) -> GetEmbedder:
    async def get() -> Embedder:
        return embedder

    return get


async def find(storage: Storage, question: Question, embedder: Embedder | None = None) -> Found:
    """Search for a question by words and, if there is an embedder, by its vector; and ask the service itself."""
    index = storage.port(PassageIndex)
    query = PassageQuery(tenant=ACME, limit=CANDIDATES)
    words = await index.by_words(query, question.text)
    vectors: list[Hit] = []
    if embedder is not None:
        [vector] = await embedder.embed([question.text])
        vectors = [hit for hit in await index.by_vector(query, embedder.model, vector) if hit.score >= LEAST_ALIKE]
    passages = await index.read(ACME, sorted({hit.number for hit in (*words, *vectors)}))
    get_embedder = None if embedder is None else _always(embedder)
    queries = Queries(storage.port(Documents), index, SystemClock(), get_embedder)
    whole = KnowledgeQuery(query=question.text, top_k=2 * CANDIDATES, max_latency_ms=_PLENTY_MS)
    answer = await queries.answer(whole, asked("query"))
    return Found(
        question,
        words,
        vectors,
        [each["document_id"] for each in answer.data["context"]],
        {each.number: each.document_id for each in passages},
    )


class Measured(Struct, frozen=True):
    """The quality of each way to search, for each question."""

    questions: Sequence[Question]
    ways: Mapping[str, Sequence[Quality]]
    best: Setting
    """For all questions together: the one to ship."""

    @classmethod
    def of(cls, found: Sequence[Found]) -> Measured:
        fused = {setting: [each.fused(setting) for each in found] for setting in product(_WORDS_WEIGHTS, _SMOOTHINGS)}
        ways = {
            WORDS: [each.quality(each.words) for each in found],
            VECTORS: [each.quality(each.vectors) for each in found],
            HELD_OUT: held_out(fused),
            AS_SHIPPED: [each.quality_of(each.answered) for each in found],
        }
        return cls([each.question for each in found], ways, best_setting(fused, range(len(found))))

    def mean(self, way: str, *kinds: bool) -> Quality:
        """Over the questions that share words, or those that do not, or both."""
        judged = zip(self.questions, self.ways[way], strict=True)
        return mean_of(quality for question, quality in judged if question.shares_words in kinds)

    def table(self, *ways: str) -> str:
        """In Markdown: recall and mean reciprocal rank, over all the questions and over each kind."""
        kinds = {"all": (True, False), "shared words": (True,), "none shared": (False,)}
        lines = [
            f"| recall@{FIRST} / MRR | {' | '.join(kinds)} |",
            "|---" * (len(kinds) + 1) + "|",
        ]
        for way in ways:
            means = [self.mean(way, *of_kind) for of_kind in kinds.values()]
            lines.append(f"| {way} | {' | '.join(f'{mean.recall:.3f} / {mean.mrr:.3f}' for mean in means)} |")
        return "\n".join(lines)

    def misses(self) -> list[str]:
        """What both together are not good enough in, with weights that were chosen on other questions."""
        both, words, vectors = (mean_of(self.ways[way]) for way in (HELD_OUT, WORDS, VECTORS))
        alone = [max(pair) for pair in zip(words, vectors, strict=True)]
        worse = [
            f"{name} of both is {ours:.3f}, and {theirs:.3f} of one alone"
            for name, ours, theirs in zip(Quality._fields, both, alone, strict=True)
            if ours < theirs - ALLOWANCE
        ]
        is_better = any(ours > theirs for ours, theirs in zip(both, alone, strict=True))
        return worse if worse or is_better else ["both together are better in nothing"]


async def measure(folder: Path, embedder: Embedder) -> list[Measured]:
    """Import the topics, embed them, and ask every question: those that are not held back, and those that are."""
    async with imported_topics(folder) as storage:
        await embed_all(storage.port(PassageVectors), embedder)
        found = [await find(storage, question, embedder) for question in load_questions().question]
    return [Measured.of([each for each in found if each.question.held_back is kind]) for kind in (False, True)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.retrieval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data_dir", type=Path, help="where `dragoman models install minilm` has put the model")
    models = parser.parse_args().data_dir
    embedder = ChosenEmbedders(KnowledgeConfig(embedder="minilm"), models, {}, SystemClock()).make()
    assert embedder is not None
    with tempfile.TemporaryDirectory(prefix="dragoman-retrieval-") as folder:
        measured, held_back = asyncio.run(measure(Path(folder), embedder))
    print(f"{len(TEXTS)} topics of Python {platform.python_version()}, {len(measured.questions)} questions\n")
    print(measured.table(*measured.ways))
    print(f"\n{len(held_back.questions)} questions that are held back\n")
    print(held_back.table(WORDS, VECTORS, AS_SHIPPED))
    best, shipped = ("words {:g}, smoothing {}".format(*setting) for setting in (measured.best, SHIPPED))
    print(f"\nbest for all questions that are not held back: {best}; shipped: {shipped}")
    misses = measured.misses()
    print("the target is reached" if not misses else f"MISSED: {'; '.join(misses)}")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
