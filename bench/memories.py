"""How often the memory tools can be called in a second, among few entries and among many: `python -m bench.memories`.

Calls go through the whole pipeline, as everybody's do. A ratio of 1 means that a tool does not care how many entries
there are. It is the median of the ratios within each round, in which both stores are asked for the same.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import dragoman
from bench.rounds import rotated
from dragoman.access.callers import LOCAL
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_memories import SqliteMemories
from dragoman.adapters.sqlite_tidying import merge_memories
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.clock import SystemClock
from dragoman.memories.migrations import MIGRATIONS
from dragoman.memories.port import Memories, Space

T = TypeVar("T")

ME = Space(LOCAL.principal, "default")
IN_FLIGHT = 64
_QUOTA = 2**40
_SETTINGS = {"resources": {"max_concurrent_executions": IN_FLIGHT}}
_VOCABULARY = 20_000
_WORDS = 8


@dataclass(frozen=True)
class Plan:
    """How many entries, how often each operation is done to them in a round, and how many rounds there are."""

    few: int = 100
    many: int = 100_000
    rounds: int = 30
    times: int = 16


SHORT = Plan(many=5_000, rounds=4)


class Texts:
    """Notes of eight words out of twenty thousand, besides one that is in all of them."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = [
            "".join(self._random.choices(letters, k=self._random.randint(3, 10))) for _ in range(_VOCABULARY)
        ]

    def note(self, number: int) -> dict[str, str | int]:
        return {"text": f"common {' '.join(self._random.choices(self._words, k=_WORDS))}", "number": number}


class OneTransaction(SqliteDatabase):
    """A database that is being filled: all that is written to it is committed together."""

    async def write(self, function: Callable[[Transaction], T]) -> T:
        return function(self._filling)

    def __enter__(self) -> OneTransaction:
        self._connection = self.connect()
        self._connection.execute("BEGIN")
        self._filling = Transaction(self._connection)
        return self

    def __exit__(self, *_: object) -> None:
        self._filling.finish()
        self._connection.execute("COMMIT")
        self._connection.close()


@asynccontextmanager
async def _sqlite(folder: Path, entries: int) -> AsyncIterator[Memories]:
    file = folder / f"{entries}-{FILE_NAME}"
    with OneTransaction(file, MIGRATIONS) as filling:
        await _fill(SqliteMemories(filling, _QUOTA, SystemClock()), entries)
    database = SqliteDatabase(file, MIGRATIONS, tidying=(merge_memories,))
    try:
        yield SqliteMemories(database, _QUOTA, SystemClock())
    finally:
        await database.close()


ADAPTERS = {"sqlite": _sqlite}
"""Each gives a store with so many entries."""


def _key(number: int) -> str:
    return f"note-{number:08}"


async def _fill(memories: Memories, entries: int) -> None:
    texts = Texts()
    gc.disable()  # It would look again and again at what is only becoming more.
    try:
        await memories.store(ME, "the-unicorn", "rarity common")
        for number in range(1, entries):
            await memories.store(ME, _key(number), texts.note(number))
    finally:
        gc.enable()


async def _operations(runtime: dragoman.Runtime, entries: int) -> dict[str, Callable[[int], Awaitable[float]]]:
    """By name, what is done so many times, and gives operations a second."""
    some, texts = random.Random(2), Texts()
    new = count(entries)
    newest = count(entries)

    async def call(tool: str, **arguments: Any) -> Any:
        return (await runtime.call(f"memory_{tool}", arguments)).unwrap()

    def any_key() -> str:
        return _key(some.randrange(1, entries))

    def replace() -> Awaitable[object]:
        return call("store", key=any_key(), value=texts.note(0))

    cursors = [(await call("list", limit=limit)).next_cursor for limit in (5, 10, 15)]
    operations: dict[str, Callable[[], Awaitable[object]]] = {
        "store, new": lambda: call("store", key=_key(next(new)), value=texts.note(0)),
        "delete": lambda: call("delete", key=_key(next(newest))),  # As many as were new, so that the size stays.
        "store, replacing": replace,
        "retrieve": lambda: call("retrieve", key=any_key()),
        "list 20": lambda: call("list", limit=20, cursor=some.choice(cursors)),
        "list 20 with a prefix": lambda: call("list", limit=20, prefix=any_key()[:-1]),
        "search a common word": lambda: call("search", query="common", limit=20),
        "search a common beginning": lambda: call("search", query="com", limit=20),
        "search a rare word": lambda: call("search", query="rarity", limit=20),
        "search a rare and a common one": lambda: call("search", query="common rarity", limit=20),
    }
    return {
        **{name: _repeated(operation) for name, operation in operations.items()},
        f"store, replacing, {IN_FLIGHT} in flight": _repeated(replace, IN_FLIGHT),
    }


def _repeated(operation: Callable[[], Awaitable[object]], in_flight: int = 1) -> Callable[[int], Awaitable[float]]:
    async def rate(times: int) -> float:
        async def repeat() -> None:
            for _ in range(each):
                await operation()

        each = -(-times // in_flight)
        started = time.perf_counter()
        await asyncio.gather(*(repeat() for _ in range(in_flight)))
        return each * in_flight / (time.perf_counter() - started)

    return rate


async def measure(adapter: str, plan: Plan) -> dict[str, dict[str, float]]:
    """By operation, how many a second among few and many entries, and how many times as many among few."""
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        async with AsyncExitStack() as stack:
            operations = []
            for entries in (plan.few, plan.many):
                memories = await stack.enter_async_context(ADAPTERS[adapter](Path(folder), entries))
                serving = dragoman.open(config=_SETTINGS, memories=memories, memory_tools=True)
                operations.append(await _operations(await stack.enter_async_context(serving), entries))
            rates: dict[str, list[list[float]]] = {name: [[], []] for name in operations[0]}
            for turn in range(plan.rounds + 1):
                for name in rates:
                    for place in rotated((0, 1), turn):
                        rates[name][place].append(await operations[place][name](plan.times))
    return {
        name: {
            "few": statistics.median(few),
            "many": statistics.median(many),
            "ratio": statistics.median(a / b for a, b in zip(few, many, strict=True)),
        }
        for name, ((_, *few), (_, *many)) in rates.items()  # The first round warms up.
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memories", description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer entries, to see that it still runs")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    plan = SHORT if options.short else Plan()
    figures = {adapter: asyncio.run(measure(adapter, plan)) for adapter in ADAPTERS}
    if options.json:
        print(json.dumps({"few": plan.few, "many": plan.many, "adapters": figures}))
        return
    for adapter, operations in figures.items():
        print(f"{adapter:<34} {f'{plan.few:,}':>12} {f'{plan.many:,}':>12} {'ratio':>7}")
        for name, rates in operations.items():
            print(f"  {name:<32} {rates['few']:>10,.0f}/s {rates['many']:>10,.0f}/s {rates['ratio']:>7.2f}")


if __name__ == "__main__":
    main()
