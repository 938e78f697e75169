"""The index of the dictionary store against plain sets, in runs so short that everything about runs happens."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.adapters import dict_index
from dragoman.adapters.dict_index import SortedRuns, WordTree
from dragoman.adapters.dict_memories import DictMemories
from dragoman.memories.port import Space
from dragoman.testing import ManualClock
from tests.support.words import beginnings_of

LETTERS = "ab"
words = st.text(LETTERS, min_size=1, max_size=7)
notes = st.lists(words, min_size=1, max_size=4, unique=True)


@pytest.fixture(autouse=True, scope="module")
def short_runs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dict_index, "LONGEST_RUN", 4)
        yield


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30))))
def test_runs_keep_different_values_in_order(steps: list[tuple[bool, int]]) -> None:
    runs: SortedRuns[int] = SortedRuns()
    model: set[int] = set()
    for is_added, value in steps:
        if not is_added:
            if model:
                runs.take(value)
            model.discard(value)
        elif value not in model:
            runs.add(value)
            model.add(value)
        assert [value for run in runs.runs for value in run] == sorted(model)
        assert all(0 < len(run) <= 4 for run in runs.runs)
        assert list(runs.upwards(15)) == sorted(value for value in model if value >= 15)
        if model:
            assert list(runs.downwards(15)) == sorted((value for value in model if value < 15), reverse=True)
            assert [value for value in range(31) if runs.has(value)] == sorted(model)


@given(st.lists(st.one_of(notes, st.integers(0, 20)), max_size=60), words, st.integers(0, 60))
def test_words_find_the_numbers_of_what_begins_with_them(steps: list[list[str] | int], wanted: str, end: int) -> None:
    index = WordTree()
    kept: dict[int, list[str]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, list):
            kept[number] = step
            for word in step:
                index.add(word, number)
        elif step in kept:
            for word in kept.pop(step):
                index.take(word, step)
    for looked_for in (wanted, *(word for note in kept.values() for word in note)):
        expected = [n for n, note in kept.items() if any(looked_for in beginnings_of(word) for word in note)]
        found = index.find(looked_for)
        assert (list(found.downwards(end)) if found is not None else []) == [n for n in reversed(expected) if n < end]
        assert [n for n in range(len(steps)) if found is not None and found.has(n)] == expected


@given(st.lists(notes, min_size=1, max_size=40), st.randoms())
def test_nothing_is_left_of_words_that_are_gone(added: list[list[str]], order: Random) -> None:
    index = WordTree()
    for number, note in enumerate(added):
        for word in note:
            index.add(word, number)
    gone = list(enumerate(added))
    order.shuffle(gone)
    for number, note in gone:
        for word in note:
            index.take(word, number)
    assert index._tops == {}


async def test_entries_that_have_a_word_in_common_are_found_from_run_to_run() -> None:
    memories, ada = DictMemories(10**9, ManualClock()), Space("ada", "default")
    for number in range(10):
        await memories.store(ada, f"k{number}", "word")
    await memories.delete(ada, ["k9", "k8", "k1"])
    first = await memories.search(ada, ("word",), 3)
    assert [item.key for item in first.items] == ["k7", "k6", "k5"]
    second = await memories.search(ada, ("word",), 9, resume=first.resume)
    assert [item.key for item in second.items] == ["k4", "k3", "k2", "k0"]
    await memories.delete(ada, [f"k{number}" for number in range(10)])
    assert memories._shelves == {}
