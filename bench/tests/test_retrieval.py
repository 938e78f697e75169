"""The labelled questions are what the documentation says of them."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from bench.questions import TEXTS, load_questions
from dragoman.search.words import words_in

LEAST_QUESTIONS = 80
LABELLED_UP_TO = (3, 13)

labelled = load_questions()


def test_there_are_enough_questions_and_half_of_them_share_no_word() -> None:
    kinds = Counter(bool(labelled.shared(question)) for question in labelled.question)
    assert kinds.total() >= LEAST_QUESTIONS
    assert abs(kinds[True] - kinds[False]) <= kinds.total() // 10


@pytest.mark.skipif(sys.version_info[:2] > LABELLED_UP_TO, reason="a newer reference may have gained a word")
def test_each_question_says_whether_it_shares_a_content_word_with_what_answers_it() -> None:
    wrong = {
        question.text: labelled.shared(question)
        for question in labelled.question
        if bool(labelled.shared(question)) is not question.shares_words
    }
    assert wrong == {}


def test_questions_are_different_and_are_answered_by_topics_that_exist() -> None:
    assert len({question.text for question in labelled.question}) == len(labelled.question)
    named = {name for question in labelled.question for name in question.topics}
    assert named <= TEXTS.keys()


def test_stop_words_are_written_as_words_are_counted() -> None:
    assert {word for stop in labelled.stop_words for word in words_in(stop)} == labelled.stop_words
