"""Operations on memories, and how much work each of them is among few entries and among many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from dragoman.memories.port import Memories, Space

ADA, BOB = Space("ada", "default"), Space("bob", "default")

Operation: TypeAlias = Callable[[], Awaitable[object]]

OPERATIONS: dict[str, Callable[[Memories], Awaitable[object]]] = {
    "store": lambda memories: memories.store(ADA, "key0050", "common new"),
    "retrieve": lambda memories: memories.retrieve(ADA, "key0050"),
    "list": lambda memories: memories.list(ADA, 20),
    "list from the middle": lambda memories: memories.list(ADA, 20, after="key0050"),
    "list with a prefix": lambda memories: memories.list(ADA, 20, prefix="key00"),
    "list the last": lambda memories: memories.list(ADA, 20, prefix="zz"),
    "search a common word": lambda memories: memories.search(ADA, ("common",), 20),
    "search a common beginning": lambda memories: memories.search(ADA, ("num",), 20),
    "search two common words": lambda memories: memories.search(ADA, ("common", "even"), 20),
    "search a rare word": lambda memories: memories.search(ADA, ("number7",), 20),
    "search a rare and a common word": lambda memories: memories.search(ADA, ("rare", "common"), 20),
    "search what is not there": lambda memories: memories.search(ADA, ("common", "nothing"), 20),
    "search the older half": lambda memories: memories.search(ADA, ("common",), 20, resume=50),
    "delete": lambda memories: memories.delete(ADA, ["key0051", "missing"]),
}


async def fill(memories: Memories, entries: int) -> None:
    """Store so many entries, half of which are somebody else's."""
    await memories.store(ADA, "zz rare", "common")
    for start in range(0, entries // 2, 250):
        numbers = range(start, min(start + 250, entries // 2))
        stores = [
            memories.store(space, f"key{n:04}", f"common word number{n} {'even' if n % 2 else 'odd'}")
            for n in numbers
            for space in (ADA, BOB)
        ]
        await asyncio.gather(*stores)
    await memories.retrieve(ADA, "warm up")


def grown(few: dict[str, int], many: dict[str, int]) -> dict[str, tuple[int, int]]:
    """The operations that take more than twice as much among many entries as among few."""
    return {name: (few[name], work) for name, work in many.items() if work > 2 * few[name]}
