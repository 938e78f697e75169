"""What the dictionaries' store keeps in order, it keeps in runs: whatever comes or goes, only one of them moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.adapters import dict_memories
from dragoman.adapters.dict_memories import LONGEST_RUN, DictMemories, Runs
from dragoman.testing import ManualClock
from dragoman.tools.builtin.memory import Space

ADA = Space("ada", "default")
numbers = st.integers(0, 60)


@given(st.lists(numbers, max_size=120), numbers)
def test_runs_hold_what_a_sorted_list_would(toggled: list[int], place: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dict_memories, "LONGEST_RUN", 4)
        runs: Runs[int] = Runs()
        model: set[int] = set()
        for number in toggled:
            if number in model:
                runs.take(number)
            else:
                runs.add(number)
            model ^= {number}
            assert [value for run in runs for value in run] == sorted(model)
            assert [run for run in runs if not 0 < len(run) <= 4] == []
        assert list(runs.upwards(place)) == sorted(number for number in model if number >= place)
        if not model:
            return
        assert list(runs.downwards(place)) == sorted((number for number in model if number < place), reverse=True)
        assert list(runs.downwards(None)) == sorted(model, reverse=True)
        assert {number for number in range(61) if runs.has(number)} == model


async def test_what_many_entries_have_in_common_is_in_runs_too() -> None:
    memories = DictMemories(10**9, ManualClock())
    for number in range(LONGEST_RUN + 2):
        await memories.store(ADA, f"k{number:04}", "word")
    shelf = memories._shelves[ADA]
    assert [len(run) for run in shelf.numbers["word"]] == [LONGEST_RUN, 2]
    assert max(len(run) for run in shelf.keys) <= LONGEST_RUN
    newest = await memories.search(ADA, ("word",), 3)
    assert [item.key for item in newest.items] == ["k1001", "k1000", "k0999"]
    await memories.delete(ADA, ["k1001", "k1000"])
    assert [len(run) for run in shelf.numbers["word"]] == [LONGEST_RUN]
    for number in range(LONGEST_RUN):
        await memories.delete(ADA, [f"k{number:04}"])
    assert memories._shelves == {}
