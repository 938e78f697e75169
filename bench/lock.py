"""How long changes of documents hold the one write lock: `python -m bench lock`.

1. A hold is from the moment in which a transaction has the lock, after BEGIN IMMEDIATE, until its COMMIT has ended. All
   others who write wait for that long, in this process and in others. The processor time is that of the writing thread.
   A checkpoint, which SQLite makes at the end of a COMMIT when it holds the lock no longer, is made apart from it.
2. Each kind of work is done in each round, with everything that it leaves to be done afterwards. What counts is the
   longest hold of a round, and of these the median: what the machine does to one transaction, it does not see.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from bench.measure import in_a_process
from bench.queries import Texts
from bench.rounds import Figures, spread_of
from bench.rounds import Plan as BenchPlan
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.clock import SystemClock
from dragoman.knowledge.index import PassageIndex
from dragoman.knowledge.migrations import MIGRATIONS
from dragoman.knowledge.part import catch_up
from dragoman.knowledge.port import ROOT, Documents, UpdateDocument
from dragoman.storage.settings import StorageConfig
from tests.support.document_entries import Tree, titled

TARGET_MS = 50.0
SMALL, MEDIUM, LARGE, TITLE, TAGS, TREE, LATER = (
    "64 new documents of 1 KB, at once",
    "a new text of 200 KB",
    "another text of 4 MB",
    "another title for 4 MB",
    "other tags for 4 MB",
    "delete a tree of 40 MB",
    "delete a tree of 8 MB at its time",
)
_KB = 1024
_AT_ONCE = 64
_TIDIED_AT_ONCE = 200
_COMMITS_BETWEEN_CHECKPOINTS = 20
_MORE_SECONDS = 900.0
_BYTES_OF_A_WORD = 7.3


@dataclass(frozen=True)
class Plan:
    rounds: int = 3
    large_kb: int = 4_000
    in_a_tree: int = 10


SHORT = Plan(rounds=1, large_kb=300, in_a_tree=2)


class Timed(sqlite3.Connection):
    """Notes how long each of its transactions has held the lock, on the clock and in processor time."""

    holds: ClassVar[list[tuple[float, float]]] = []
    begun: tuple[float, float] | None = None

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:
        if statement.startswith("PRAGMA wal_autocheckpoint"):
            statement = "PRAGMA wal_autocheckpoint = 0"
        cursor = super().execute(statement, values)
        if statement == "BEGIN IMMEDIATE":
            self.begun = time.perf_counter(), time.thread_time()
        elif statement == "COMMIT" and self.begun:
            clock, processor = self.begun
            self.holds.append((time.perf_counter() - clock, time.thread_time() - processor))
            self.begun = None
            if len(self.holds) % _COMMITS_BETWEEN_CHECKPOINTS == 0:
                super().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        return cursor


class Work:
    """A storage, and the kinds of work that are measured."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._plan = plan
        self.storage = SqliteStorage(StorageConfig(data_dir=str(folder)), SystemClock(), MIGRATIONS)
        self._documents, self._index = self.storage.port(Documents), self.storage.port(PassageIndex)
        self._tree = Tree(self._documents)
        self._texts = Texts()
        self._count = 0

    async def round(self) -> Figures:
        """The holds of each kind of work."""
        large = self._text(self._plan.large_kb)
        await self._create(self._text(self._plan.large_kb))
        found = {}
        async with self._held(found, SMALL):
            await asyncio.gather(*(self._create(self._text(1)) for _ in range(_AT_ONCE)))
        async with self._held(found, MEDIUM):
            document = await self._create(self._text(200))
        async with self._held(found, LARGE):
            await self._tree.do(UpdateDocument(id=document, fields={"content.body": large}))
        async with self._held(found, TITLE):
            await self._tree.do(titled(document, "Another title"))
        async with self._held(found, TAGS):
            await self._tree.do(UpdateDocument(id=document, fields={"metadata.tags": ("one", "two")}))
        top = await self._grown(self._plan.in_a_tree)
        async with self._held(found, TREE):
            await self._tree.delete(top)
        top = await self._grown(max(1, self._plan.in_a_tree // 5))
        async with self._held(found, LATER):
            await self._tree.delete(top, time.time() + 0.001)
            await asyncio.sleep(0.01)
        return found

    @asynccontextmanager
    async def _held(self, found: Figures, name: str) -> AsyncIterator[None]:
        await self._finish()
        Timed.holds.clear()
        yield
        await self._finish()
        found[name] = [(clock * 1e3, processor * 1e3) for clock, processor in Timed.holds]

    async def _finish(self) -> None:
        while await self._documents.tidy(_TIDIED_AT_ONCE):
            pass
        await catch_up(self._index)

    async def _grown(self, documents: int) -> str:
        """A document with so many large ones below it."""
        top = await self._create("")
        for _ in range(documents):
            await self._create(self._text(self._plan.large_kb), top)
        return top

    async def _create(self, body: str, parent: str = ROOT) -> str:
        self._count += 1
        await self._tree.create(f"d{self._count}", parent, title="A title of some words", body=body)
        return f"d{self._count}"

    def _text(self, kilobytes: int) -> str:
        words = int(kilobytes * _KB / _BYTES_OF_A_WORD)
        return "\n\n".join(self._texts.words(min(100, words - at)) for at in range(0, words, 100))


async def measure(plan: Plan) -> Figures:
    """By kind of work: the longest hold of each round, how many transactions, and how long these take together."""
    sqlite3.connect = partial(sqlite3.connect, factory=Timed)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory(prefix="dragoman-lock-") as folder:
        work = Work(Path(folder), plan)
        try:
            rounds = [await work.round() for _ in range(plan.rounds)]
        finally:
            await work.storage.close()
    return {
        name: {
            "longest_ms": spread_of([max(clock for clock, _ in each[name]) for each in rounds]),
            "longest_cpu_ms": spread_of([max(processor for _, processor in each[name]) for each in rounds]),
            "transactions": max(len(each[name]) for each in rounds),
            "together_ms": spread_of([sum(clock for clock, _ in each[name]) for each in rounds]),
        }
        for name in rounds[0]
    }


def lock(plan: BenchPlan) -> Figures:
    """Run in a process of its own, whose connections are timed."""
    plan.say("lock: changing documents")
    return in_a_process(plan, "lock", *(["--short"] if plan.is_short else []), more_seconds=_MORE_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    print(json.dumps(asyncio.run(measure(SHORT if options.short else Plan())), indent=1))


if __name__ == "__main__":
    main()
