"""What a hostile tenant costs others is measured, and is held to the targets."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.hostile import LOADS, Size
from bench.neighbours import ALL, CASES, Plan, Result, Seen, measured, most_ms, text


def seen(ms: float, refused: int = 0) -> Seen:
    times = [ms / 1e3] * 100
    return Seen({"write": times, "read": times}, Counter({"429": refused} if refused else {}))


def result(alone: float, beside: float, refused: int = 0, case: str = "titles") -> Result:
    return Result(case, 0.5, seen(alone), seen(beside, refused), memory=[60.0, 70.0], disk=[1.0, 2.0])


@pytest.mark.slow
@pytest.mark.nightly
def test_all_loads_at_once_are_put_on_a_server_while_others_are_answered() -> None:
    said: list[str] = []
    found = measured(ALL, Plan(requests=20, rounds=2, size=Size.small()), said.append)
    assert [len(each) for seen in (found.alone, found.beside) for each in seen.times.values()] == [20] * 4
    assert (found.alone.refused, found.beside.refused) == ({}, {})
    assert {"200", "201", "unread"} <= found.hostile.keys()
    assert found.disk[0] < found.disk[1]
    assert len(said) == 2
    assert f"| {ALL} |" in text([found])


def test_the_targets_are_three_times_the_time_alone_or_50_ms_and_that_none_is_refused() -> None:
    assert (most_ms(10.0), most_ms(20.0)) == (50.0, 60.0)
    assert [result(*each).is_reached() for each in ((10, 49), (20, 59), (10, 51), (20, 61))] == [
        True,
        True,
        False,
        False,
    ]
    assert not result(10, 10, refused=1).is_reached()
    assert result(10, 1_000, case=ALL).is_reached()
    assert "MISSED" in text([result(10, 51)])
    assert "titles: 1 times 429" in text([result(10, 10, refused=1)])


def test_each_load_is_a_case_and_all_of_them_are_another() -> None:
    assert [*CASES] == [*LOADS, ALL]
