"""Ranked lists of passages become one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.knowledge.fusing import COVERS_ALL, SMOOTHING, VECTORS_WEIGHT, WORDS_WEIGHT, Ranked, fuse
from dragoman.knowledge.index import Hit


def ranked(*numbers: int, weight: float = 1.0) -> Ranked:
    return Ranked([Hit(number, 1.0) for number in numbers], weight)


def test_what_both_lists_have_comes_before_what_one_has() -> None:
    fused = fuse(ranked(1, 2, 3), ranked(4, 3, 5))
    assert [hit.number for hit in fused] == [3, 1, 4, 2, 5]
    ranks = (SMOOTHING + 3, SMOOTHING + 2)
    assert fused[0].score == pytest.approx(sum(1 / rank for rank in ranks) / (2 / (SMOOTHING + 1)))


def test_the_first_of_every_list_has_the_score_1_whatever_the_weights() -> None:
    for lists in ((ranked(7, 1, weight=0.3), ranked(7, 2, weight=1.7)), (ranked(7, 1),)):
        first = fuse(*lists)[0]
        assert first.number == 7
        assert first.score == pytest.approx(1.0)


def test_weights_decide_between_the_first_of_each_list() -> None:
    assert fuse(ranked(1, weight=1.0), ranked(2, weight=1.1))[0].number == 2


def test_hits_by_score_count_as_much_as_they_cover() -> None:
    """A list of poor hits does not get ahead of the other one, whatever its weight is."""
    good, poor = (Ranked([Hit(1, score), Hit(2, score / 2)], 2.0, by_score=True) for score in (0.4, 0.05))
    assert [hit.number for hit in fuse(good, ranked(3, 2))] == [1, 2, 3]
    assert [hit.number for hit in fuse(poor, ranked(3, 2))] == [3, 2, 1]
    assert fuse(good)[0].score == pytest.approx(0.4 / COVERS_ALL)


@pytest.mark.parametrize("score", [COVERS_ALL, 0.9])
def test_a_passage_that_covers_the_question_comes_before_one_that_is_only_alike(score: float) -> None:
    fused = fuse(Ranked([Hit(2, score)], WORDS_WEIGHT, by_score=True), ranked(1, weight=VECTORS_WEIGHT))
    assert [hit.number for hit in fused] == [2, 1]
    assert fuse(Ranked([Hit(2, score)], WORDS_WEIGHT, by_score=True)) == [Hit(2, 1.0)]


def test_no_lists_and_empty_lists_have_no_passages() -> None:
    assert fuse() == fuse(ranked(), ranked()) == []


NUMBERS = st.lists(st.integers(0, 30), unique=True)


@given(st.lists(st.tuples(NUMBERS, st.floats(0.1, 10)), max_size=4))
def test_every_passage_is_there_once_in_order_with_a_score_of_at_most_1(lists: list[tuple[list[int], float]]) -> None:
    fused = fuse(*(ranked(*numbers, weight=weight) for numbers, weight in lists))
    assert sorted(hit.number for hit in fused) == sorted({number for numbers, _ in lists for number in numbers})
    assert fused == sorted(fused, key=lambda hit: (-hit.score, hit.number))
    assert all(0 < hit.score <= 1.0000001 for hit in fused)
