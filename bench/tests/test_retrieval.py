"""The labelled questions are what the documentation says of them, and search finds answers to them."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from bench.questions import TEXTS, load_questions
from bench.ranking import Quality, mean_of
from bench.retrieval import HELD_OUT, VECTORS, WORDS, Measured, find, imported_topics
from dragoman.search.words import words_in

LEAST_QUESTIONS = 80
LABELLED_UP_TO = (3, 13)
LEAST_RECALL = 0.75
"""Of questions that share words, by words alone. It was 0.87 with Python 3.11."""

labelled = load_questions()


@pytest.mark.slow
def test_there_are_enough_questions_and_half_of_them_share_no_word() -> None:
    for held_back, least in ((False, LEAST_QUESTIONS), (True, LEAST_QUESTIONS // 2)):
        questions = [question for question in labelled.question if question.held_back is held_back]
        kinds = Counter(bool(labelled.shared(question)) for question in questions)
        assert kinds.total() >= least
        assert abs(kinds[True] - kinds[False]) <= kinds.total() // 10


@pytest.mark.slow
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


@pytest.mark.slow
async def test_words_alone_find_most_answers_that_share_a_word_with_the_question(tmp_path: Path) -> None:
    questions = [question for question in labelled.question if question.shares_words]
    async with imported_topics(tmp_path) as storage:
        found = [await find(storage, question) for question in questions]
    assert mean_of(each.quality(each.words) for each in found).recall >= LEAST_RECALL
    assert [each.quality_of(each.answered) for each in found] == [each.quality(each.words) for each in found]


def measured(both: Quality, words: Quality, vectors: Quality) -> Measured:
    return Measured(labelled.question[:1], {WORDS: [words], VECTORS: [vectors], HELD_OUT: [both]}, (1.0, 1))


def test_target_is_missed_by_being_worse_in_one_figure_or_better_in_none() -> None:
    words, vectors = Quality(0.5, 0.6), Quality(0.8, 0.4)
    assert measured(Quality(0.79, 0.61), words, vectors).misses() == []
    assert measured(Quality(0.81, 0.59), words, vectors).misses() == []
    assert measured(Quality(0.77, 0.99), words, vectors).misses() == ["recall of both is 0.770, and 0.800 of one alone"]
    assert measured(Quality(0.99, 0.57), words, vectors).misses() == ["mrr of both is 0.570, and 0.600 of one alone"]
    assert measured(Quality(0.8, 0.6), words, vectors).misses() == ["both together are better in nothing"]
