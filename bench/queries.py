"""Searches among few passages and many, beside bare statements: `python -m bench queries`.

1. One tenant has the passages that are searched; others have a hundred each. All of it is stored as actions store it.
2. A query has three words, drawn as often as they occur in texts. Vectors are made up: 384 numbers.
3. Bare are a table of FTS5 with the passages of the one tenant alone, ordered by FTS5's own bm25, and a matrix in
   memory that is multiplied in NumPy. Both run on a thread, as ours do, and give as many results.
4. A ratio is the median of the ratios of each query. A result is not read: `read` is measured apart.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.measure import in_a_process
from bench.rounds import Figures
from bench.rounds import Plan as BenchPlan
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.clock import SystemClock
from dragoman.knowledge.index import PassageIndex, PassageQuery, PassageVectors
from dragoman.knowledge.migrations import MIGRATIONS
from dragoman.knowledge.passages import passages_of
from dragoman.knowledge.port import ROOT, ActionRequest, CreateDocument, Document, Documents
from dragoman.search.words import words_in
from dragoman.storage.settings import StorageConfig

SEARCHED = "searched"
MODEL = "made-up-384"
LIMIT = 50
_DIMENSIONS = 384
_VOCABULARY = 20_000
_WORDS = 100
_IN_FLIGHT = 64
_PER_DOCUMENT = 10
_OTHERS_HAVE = 100
_AT_ONCE = 2_000
_MB = 1 << 20
_MORE_SECONDS = 900.0


@dataclass(frozen=True)
class Plan:
    sizes: Sequence[int] = (1_000, 10_000, 100_000)
    tenants: Sequence[int] = (1, 10, 100)
    queries: int = 60


SHORT = Plan(sizes=(200, 1_000), tenants=(1, 3), queries=10)


class Texts:
    """Texts whose words are as unevenly common as those of a language."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(self.random.choices(letters, k=self.random.randint(2, 10))) for _ in range(_VOCABULARY)]
        self._weights = [*accumulate(1 / (rank + 1) for rank in range(_VOCABULARY))]

    def words(self, number: int) -> str:
        return " ".join(self.random.choices(self._words, cum_weights=self._weights, k=number))

    def body(self) -> str:
        return "\n\n".join(self.words(_WORDS + self.random.randint(-20, 20)) for _ in range(_PER_DOCUMENT))


class Bench:
    """A storage that is filled and searched, and the bare statements beside it."""

    def __init__(self, folder: Path) -> None:
        self._storage = SqliteStorage(StorageConfig(data_dir=str(folder)), SystemClock(), MIGRATIONS)
        self._documents = self._storage.port(Documents)
        self._index = self._storage.port(PassageIndex)
        self._vectors = self._storage.port(PassageVectors)
        self._texts = Texts()
        self._made = np.random.default_rng(1)
        self._bare = sqlite3.connect(folder / "bare.db", isolation_level=None, check_same_thread=False)
        self._bare.execute("CREATE VIRTUAL TABLE bare USING fts5 (words, content = '', tokenize = 'ascii')")
        self._matrix = np.empty((0, _DIMENSIONS), np.float32)

    async def close(self) -> None:
        self._bare.close()
        await self._storage.close()

    async def fill(self, tenant: str, passages: int) -> float:
        """Passages a second, with their words."""
        bodies = [self._texts.body() for _ in range(passages // _PER_DOCUMENT)]
        waiting, began = iter(bodies), time.perf_counter()

        async def create() -> None:
            for body in waiting:
                await self._create(tenant, body)

        await asyncio.gather(*(create() for _ in range(_IN_FLIGHT)))
        taken = time.perf_counter() - began
        if tenant == SEARCHED:
            self._bare.execute("BEGIN")
            pieces = (piece for body in bodies for piece in passages_of("text/plain", body))
            self._bare.executemany("INSERT INTO bare (words) VALUES (?)", ((piece.text,) for piece in pieces))
            self._bare.execute("COMMIT")
        return passages / taken

    async def _create(self, tenant: str, body: str) -> None:
        id, now = str(uuid.uuid4()), time.time()
        document = Document(
            tenant=tenant, id=id, parent=ROOT, place=0, title="t", mime_type="text/plain", body=body, created_at=now,
            updated_at=now,
        )  # fmt: skip
        request = ActionRequest(tenant=tenant, principal="bench", roles=frozenset(), action="create", correlation_id=id)
        await self._documents.carry_out(CreateDocument(document=document), request)

    async def embed(self) -> None:
        """Give every passage a vector."""
        while wanted := await self._vectors.wanted(MODEL, _AT_ONCE):
            made = self._unit(len(wanted))
            self._matrix = np.concatenate([self._matrix, made])
            rows = zip(wanted, made, strict=True)
            await self._vectors.put(MODEL, {each.number: row.astype("<f4").tobytes() for each, row in rows})

    def _unit(self, rows: int) -> Any:
        made = self._made.standard_normal((rows, _DIMENSIONS), np.float32)
        return made / np.linalg.norm(made, axis=1, keepdims=True)

    async def measure(self, passages: int, queries: int) -> Figures:
        query = PassageQuery(tenant=SEARCHED, limit=LIMIT)
        matrix = np.ascontiguousarray(self._matrix[:passages])
        texts = [self._texts.words(3) for _ in range(queries)]
        vectors = [row.tobytes() for row in self._unit(queries)]
        bare_words = [" OR ".join(f'"{word}"' for word in words_in(text)) for text in texts]
        hits = await self._index.by_vector(query, MODEL, vectors[0])
        numbers = [hit.number for hit in hits[:10]]

        def search_bare(text: str) -> Any:
            return self._bare.execute(
                "SELECT rowid, rank FROM bare WHERE bare MATCH ? ORDER BY rank LIMIT ?", (text, LIMIT)
            ).fetchall()

        def multiply(vector: bytes) -> Any:
            scores = matrix @ np.frombuffer(vector, "<f4")
            best = np.argpartition(scores, -LIMIT)[-LIMIT:]
            return best[np.argsort(-scores[best])]

        words = [
            (
                await _timed(self._index.by_words(query, text)),
                await _timed(asyncio.to_thread(search_bare, bare)),
            )
            for text, bare in zip(texts, bare_words, strict=True)
        ]
        alike = [
            (
                await _timed(self._index.by_vector(query, MODEL, vector)),
                await _timed(asyncio.to_thread(multiply, vector)),
            )
            for vector in vectors
        ]
        reads = [await _timed(self._index.read(SEARCHED, numbers)) for _ in range(queries)]
        return {"words": _figures(words), "vectors": _figures(alike), "read_ms": statistics.median(reads) * 1e3}


async def _timed(asked: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await asked
    return time.perf_counter() - began


def _figures(pairs: Sequence[tuple[float, float]]) -> Figures:
    ours, bare = ([seconds * 1e3 for seconds in each] for each in zip(*pairs, strict=True))
    return {
        "p50_ms": statistics.median(ours),
        "p95_ms": statistics.quantiles(ours, n=20)[-1],
        "bare_p50_ms": statistics.median(bare),
        "bare_p95_ms": statistics.quantiles(bare, n=20)[-1],
        "ratio": statistics.median(mine / theirs for mine, theirs in pairs),
    }


def queries(plan: BenchPlan) -> Figures:
    """Run in a process of its own, whose memory is measured."""
    plan.say("queries: filling the index")
    # A multiplication is quick enough on one core, and threads of the library would be measured with all else.
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    short = ["--short"] if plan.is_short else []
    figures = in_a_process(plan, "queries", *short, environment=environment, more_seconds=_MORE_SECONDS)
    for size, found in figures.items():
        plan.say(f"queries, {int(size):,} passages: {found['per_second']:,.0f} indexed/s")
    return figures


async def measure(plan: Plan) -> Figures:
    """By number of passages and of tenants: milliseconds; and passages a second, and memory."""
    found: Figures = {}
    for size in plan.sizes:
        with tempfile.TemporaryDirectory(prefix="dragoman-queries-") as folder:
            bench, figures = Bench(Path(folder)), {}
            try:
                per_second = await bench.fill(SEARCHED, size)
                await bench.embed()
                before = psutil.Process().memory_info().rss
                there = 1
                for tenants in plan.tenants:
                    for number in range(there, tenants):
                        await bench.fill(f"other {number}", _OTHERS_HAVE)
                    there = tenants
                    await bench.embed()
                    figures[str(tenants)] = await bench.measure(size, plan.queries)
                grown = (psutil.Process().memory_info().rss - before) / _MB
            finally:
                await bench.close()
        found[str(size)] = {"tenants": figures, "per_second": per_second, "grown_mb": grown}
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="*")
    options = parser.parse_args()
    plan = SHORT if options.short else Plan()
    if options.sizes:
        plan = Plan(sizes=options.sizes)
    print(json.dumps(asyncio.run(measure(plan)), indent=1))


if __name__ == "__main__":
    main()
