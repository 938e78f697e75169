"""`python -m bench.memories [--short]`: what the memory tools' stores do in a second, among few entries and among many.

A ratio of 1 means that an operation does not care how many entries there are.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from dragoman.adapters.dict_memories import DictMemories
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_memories import SqliteMemories
from dragoman.clock import SystemClock
from dragoman.tools.builtin.memory import Memories, Space

ME = Space("me", "default")
IN_FLIGHT = 64
_QUOTA = 2**40
_ROUNDS = 3
_VOCABULARY = 20_000
_WORDS = 16


class Texts:
    """Notes of sixteen words out of twenty thousand, besides one that is in all of them."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = [
            "".join(self._random.choices(letters, k=self._random.randint(3, 10))) for _ in range(_VOCABULARY)
        ]

    def note(self, number: int) -> dict[str, str | int]:
        return {"text": f"common {' '.join(self._random.choices(self._words, k=_WORDS))}", "number": number}


@asynccontextmanager
async def _sqlite(folder: Path) -> AsyncIterator[Memories]:
    database = SqliteDatabase(folder / FILE_NAME)
    try:
        yield SqliteMemories(database, _QUOTA, SystemClock())
    finally:
        await database.close()


@asynccontextmanager
async def _dict(folder: Path) -> AsyncIterator[Memories]:
    yield DictMemories(_QUOTA, SystemClock())


ADAPTERS = {"sqlite": _sqlite, "dict": _dict}


def _key(number: int) -> str:
    return f"note-{number:08}"


async def _fill(memories: Memories, texts: Texts, entries: int) -> None:
    await memories.store(ME, "the-unicorn", "rarity common")
    for start in range(1, entries, 500):
        numbers = range(start, min(start + 500, entries))
        await asyncio.gather(*(memories.store(ME, _key(number), texts.note(number)) for number in numbers))


def _operations(memories: Memories, texts: Texts, entries: int) -> dict[str, Callable[[], Awaitable[object]]]:
    some = random.Random(2)
    new = count(entries)
    newest = count(entries)

    def any_key() -> str:
        return _key(some.randrange(1, entries))

    return {
        "store, new": lambda: memories.store(ME, _key(next(new)), texts.note(0)),
        "delete": lambda: memories.delete(ME, [_key(next(newest))]),  # As many as were new, so that the size stays.
        "store, replacing": lambda: memories.store(ME, any_key(), texts.note(0)),
        "retrieve": lambda: memories.retrieve(ME, any_key()),
        "list 20": lambda: memories.list(ME, 20, after=any_key()),
        "list 20 with a prefix": lambda: memories.list(ME, 20, prefix=any_key()[:-1]),
        "search a common word": lambda: memories.search(ME, ("common",), 20),
        "search a common beginning": lambda: memories.search(ME, ("com",), 20),
        "search a rare word": lambda: memories.search(ME, ("rarity",), 20),
        "search a rare and a common one": lambda: memories.search(ME, ("common", "rarity"), 20),
    }


async def _rate(operation: Callable[[], Awaitable[object]], times: int, in_flight: int = 1) -> float:
    """Operations in a second."""

    async def repeat() -> None:
        for _ in range(times // in_flight):
            await operation()

    started = time.perf_counter()
    await asyncio.gather(*(repeat() for _ in range(in_flight)))
    return times // in_flight * in_flight / (time.perf_counter() - started)


async def measure(adapter: str, entries: int, times: int) -> dict[str, float]:
    """The best of three rounds for every operation among so many entries."""
    texts = Texts()
    rates: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as folder:
        async with ADAPTERS[adapter](Path(folder)) as memories:
            await _fill(memories, texts, entries)
            operations = _operations(memories, texts, entries)
            for _ in range(_ROUNDS):
                for name, operation in operations.items():
                    rates[name] = max(rates.get(name, 0), await _rate(operation, times))
            replace = operations["store, replacing"]
            name = f"store, replacing, {IN_FLIGHT} in flight"
            rates[name] = max([await _rate(replace, times * 4, IN_FLIGHT) for _ in range(_ROUNDS)])
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memories", description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer entries, to see that it still runs")
    options = parser.parse_args()
    few, many, times = (100, 5_000, 200) if options.short else (100, 100_000, 1_000)
    for adapter in ADAPTERS:
        among_few = asyncio.run(measure(adapter, few, times))
        among_many = asyncio.run(measure(adapter, many, times))
        print(f"{adapter:<34} {f'{few:,}':>12} {f'{many:,}':>12} {'ratio':>7}")
        for name, rate in among_few.items():
            print(f"  {name:<32} {rate:>10,.0f}/s {among_many[name]:>10,.0f}/s {rate / among_many[name]:>7.2f}")


if __name__ == "__main__":
    main()
