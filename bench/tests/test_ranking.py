"""Recall, mean reciprocal rank, and settings that are chosen on other questions than they are judged by."""

from __future__ import annotations

import pytest

from bench.ranking import Quality, best_setting, held_out, mean_of, quality_of

GOOD, BAD = Quality(1.0, 1.0), Quality(0.0, 0.0)


@pytest.mark.parametrize(
    ("ranked", "expected"),
    [
        (["b", "x"], GOOD),
        (["x", "a", "b"], Quality(1.0, 0.5)),
        (["v", "w", "x", "y", "b"], Quality(1.0, 0.2)),
        (["u", "v", "w", "x", "y", "a", "b"], Quality(0.0, 1 / 6)),
        (["x"], BAD),
        ([], BAD),
    ],
)
def test_first_answering_document_decides(ranked: list[str], expected: Quality) -> None:
    assert quality_of(ranked, ("a", "b")) == expected


def test_mean_is_taken_of_each_figure() -> None:
    assert mean_of([GOOD, Quality(1.0, 0.5), BAD, Quality(0.0, 0.1)]) == Quality(0.5, 0.4)


def test_best_setting_is_the_first_of_equal_ones_for_the_given_questions() -> None:
    qualities = {"first": [GOOD, BAD], "second": [BAD, GOOD], "third": [BAD, GOOD]}
    assert [best_setting(qualities, [number]) for number in (0, 1)] == ["first", "second"]


def test_a_setting_that_helps_one_question_only_is_not_chosen_for_it() -> None:
    """Each setting answers one question and no other one; a question never has a say in its own setting."""
    lucky = {number: [GOOD if number == other else BAD for other in range(10)] for number in range(10)}
    assert held_out(lucky) == [BAD] * 10
    sound = {**lucky, "sound": [Quality(1.0, 0.5)] * 10}
    assert held_out(sound) == [Quality(1.0, 0.5)] * 10
