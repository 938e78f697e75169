"""What the dictionary store does on the event loop, where everybody else's work is done, too."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from types import FrameType
from typing import Any

import pytest
from hypothesis import given

from dragoman.adapters import dict_index, dict_memories
from dragoman.adapters.dict_memories import DictMemories
from dragoman.errors import OverQuota
from dragoman.memories.port import Matches
from dragoman.testing import ManualClock
from tests.contract.histories import QUOTA, compare, histories
from tests.unit.adapters.memory_work import ADA, OPERATIONS, Operation, fill, grown

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


class Key(str):
    """A key that counts how often one is compared with another."""

    __slots__ = ()
    comparisons = 0

    def __lt__(self, other: str) -> bool:
        Key.comparisons += 1
        return str.__lt__(self, other)

    def __gt__(self, other: str) -> bool:
        Key.comparisons += 1
        return str.__gt__(self, other)


async def work_of(operation: Operation) -> tuple[int, int]:
    """Steps and allocated bytes, the same every time, unlike seconds.

    Steps are lines and comparisons of keys; functions written in C, such as `sorted`, run no lines, but compare or
    allocate.
    """
    lines, Key.comparisons = 0, 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in (dict_memories.__file__, dict_index.__file__):
            return None
        lines += 1
        return trace

    outer = sys.gettrace()
    tracemalloc.start()
    sys.settrace(trace)
    try:
        await operation()
    finally:
        sys.settrace(outer)
        allocated = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return lines + Key.comparisons, allocated


async def work_of_each(entries: int) -> tuple[dict[str, int], dict[str, int]]:
    """The steps of each operation among so many entries, and the bytes that each operation which reads allocates."""
    memories = DictMemories(10**9, ManualClock())
    await fill(memories, entries, Key)
    works = {name: await work_of(lambda run=run: run(memories)) for name, run in OPERATIONS.items()}  # type: ignore[misc]
    allocated = {}
    for name, run in OPERATIONS.items():
        if name not in ("store", "delete"):
            again = [await work_of(lambda run=run: run(memories)) for _ in range(2)]  # type: ignore[misc]
            allocated[name] = min(size for _, size in (works[name], *again))  # Other threads allocate now and then.
    return {name: steps for name, (steps, _) in works.items()}, allocated


@pytest.mark.requirement("PRD-P5")
@pytest.mark.parametrize("entries", [2000, pytest.param(20_000, marks=pytest.mark.slow)])
async def test_no_operation_does_more_work_among_many_entries_than_among_few(entries: int) -> None:
    few, allocated_few = await work_of_each(200)
    many, allocated_many = await work_of_each(entries)
    assert min(few.values()) > 0
    assert (grown(few, many), grown(allocated_few, allocated_many)) == ({}, {})


@pytest.mark.slow
@given(histories)
def test_any_history_leaves_what_a_plain_dictionary_would_hold_where_little_is_much(history: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dict_index, "LONGEST_RUN", 2)
        patch.setattr(dict_memories, "_LETTERS_AT_ONCE", 3)
        patch.setattr(dict_memories, "_LOOKUPS_AT_ONCE", 2)
        asyncio.run(compare(DictMemories(QUOTA, ManualClock()), history))


async def test_a_smaller_value_is_taken_even_when_the_quota_is_exceeded() -> None:
    memories = DictMemories(10**9, ManualClock())
    await memories.store(ADA, "k", "x" * 100)
    memories._limit = 10
    await memories.store(ADA, "k", "x" * 50)
    with pytest.raises(OverQuota):
        await memories.store(ADA, "k", "x" * 51)
