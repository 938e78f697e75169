"""What the dictionary store does on the event loop, where everybody else's work is done, too."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.adapters import dict_memories
from dragoman.adapters.dict_memories import DictMemories
from dragoman.testing import ManualClock
from dragoman.tools.builtin.memory import Matches, Space

ADA = Space("ada", "default")
LONG = " ".join(f"word{number}" for number in range(2000))


async def filled(count: int) -> DictMemories:
    memories = DictMemories(10**9, ManualClock())
    for number in range(count):
        await memories.store(ADA, f"k{number}", LONG)
    return memories


async def found(memories: DictMemories, *words: str) -> list[str]:
    return [item.key for item in (await memories.search(ADA, words, 100)).items]


async def test_to_delete_many_long_entries_holds_nobody_up_and_they_are_gone_at_once() -> None:
    memories = await filled(9)
    deleting = asyncio.ensure_future(memories.delete(ADA, [f"k{number}" for number in range(8)]))
    await asyncio.sleep(0)
    assert not deleting.done()
    assert await found(memories, "word7") == await found(memories, "word7", "word8") == ["k8"]
    assert (await memories.list(ADA, 1)).total == 1
    await memories.store(ADA, "k0", "word7 again")
    assert await deleting == 8
    assert await found(memories, "word7") == ["k0", "k8"]
    assert await found(memories, "word8") == ["k8"]


async def test_what_a_deletion_that_was_cancelled_left_in_the_index_goes_with_the_next() -> None:
    memories = await filled(9)
    deleting = asyncio.ensure_future(memories.delete(ADA, [f"k{number}" for number in range(8)]))
    await asyncio.sleep(0)
    deleting.cancel()
    await asyncio.gather(deleting, return_exceptions=True)
    assert await found(memories, "word7") == ["k8"]
    assert await memories.delete(ADA, ["k1"]) == 0
    numbers = memories._shelves[ADA].words.find("word7")
    assert numbers is not None
    assert list(numbers) == [9]


async def test_the_last_entries_take_the_whole_index_with_them() -> None:
    memories = await filled(9)
    first = asyncio.ensure_future(memories.delete(ADA, [f"k{number}" for number in range(8)]))
    await asyncio.sleep(0)
    assert await memories.delete(ADA, ["k8"]) == 1
    assert memories._shelves == memories._bytes == {}
    await memories.store(ADA, "k0", "new")
    assert await first == 8
    assert await memories.search(ADA, ("word7",), 9) == Matches((), None)
    assert await found(memories, "new") == ["k0"]


async def test_a_search_for_common_words_that_are_seldom_together_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dict_memories, "_LOOKUPS_AT_ONCE", 20)
    memories = DictMemories(10**9, ManualClock())
    for number in range(100):
        text = "odd even" if number in (5, 15, 75, 95) else "odd" if number % 2 else "even"
        await memories.store(ADA, f"k{number}", text)
    searching = asyncio.ensure_future(memories.search(ADA, ("odd", "even"), 2))
    await asyncio.sleep(0)
    assert not searching.done()
    await memories.delete(ADA, ["k95", "k75"])  # The one has been found already, and the other has not.
    first = await searching
    assert [item.key for item in first.items] == ["k95", "k15"]
    second = await memories.search(ADA, ("odd", "even"), 2, resume=first.resume)
    assert ([item.key for item in second.items], second.resume) == (["k5"], None)
    assert await found(memories, "odd", "k5") == ["k5"]
    assert await found(memories, "odd", "k4") == []
