"""Ranked lists of passages become one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.knowledge.fusing import Ranked, fuse
from dragoman.knowledge.index import Hit


def ranked(*numbers: int, weight: float = 1.0) -> Ranked:
    return Ranked([Hit(number, 1.0) for number in numbers], weight)


def test_what_both_lists_have_comes_before_what_one_has() -> None:
    fused = fuse(ranked(1, 2, 3), ranked(4, 3, 5))
    assert [hit.number for hit in fused] == [3, 1, 4, 2, 5]
    assert fused[0].score == pytest.approx((1 / 63 + 1 / 62) / (2 / 61))


def test_the_first_of_every_list_has_the_score_1_whatever_the_weights() -> None:
    for lists in ((ranked(7, 1, weight=0.3), ranked(7, 2, weight=1.7)), (ranked(7, 1),)):
        first = fuse(*lists)[0]
        assert first.number == 7
        assert first.score == pytest.approx(1.0)


def test_weights_decide_between_the_first_of_each_list() -> None:
    assert fuse(ranked(1, weight=1.0), ranked(2, weight=1.1))[0].number == 2


def test_no_lists_and_empty_lists_have_no_passages() -> None:
    assert fuse() == fuse(ranked(), ranked()) == []


NUMBERS = st.lists(st.integers(0, 30), unique=True)


@given(st.lists(st.tuples(NUMBERS, st.floats(0.1, 10)), max_size=4))
def test_every_passage_is_there_once_in_order_with_a_score_of_at_most_1(lists: list[tuple[list[int], float]]) -> None:
    fused = fuse(*(ranked(*numbers, weight=weight) for numbers, weight in lists))
    assert sorted(hit.number for hit in fused) == sorted({number for numbers, _ in lists for number in numbers})
    assert fused == sorted(fused, key=lambda hit: (-hit.score, hit.number))
    assert all(0 < hit.score <= 1.0000001 for hit in fused)
