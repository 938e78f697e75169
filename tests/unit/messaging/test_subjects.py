"""Subjects: each name is one word, and a pattern matches what has one word in the place of its wildcard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.messaging.subjects import (
    ALL_ACTIONS,
    actions_subject,
    events_subject,
    matches,
    name_in,
    replies_subject,
    word_for,
)
from dragoman.messaging.turns import subjects_in_turn

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.sampled_from(
    ["*", ">", "a.b", "A", "MFRGG", "42222", "浭", "B", "B42222"]
)
subjects = st.text("ab.*/\0é", max_size=8)


@given(names, names)
def test_two_names_never_become_the_same_word(one: str, other: str) -> None:
    assert (word_for(one) == word_for(other)) == (one == other)
    assert name_in(word_for(one)) == one


@given(names)
def test_a_name_becomes_one_word_without_wildcards(name: str) -> None:
    word = word_for(name)
    assert word
    assert not set(word) & set(".*> ")
    assert matches(ALL_ACTIONS, actions_subject(name))
    assert not matches(ALL_ACTIONS, events_subject(name))
    assert not matches(ALL_ACTIONS, replies_subject(name, name))


def test_a_plain_name_stays_readable() -> None:
    assert actions_subject("acme-2_x") == "dragoman.actions.acme-2_x"
    assert actions_subject("Acme") == "dragoman.actions.BIFRW2ZI"
    assert replies_subject("acme", "0B5C") == replies_subject("acme", "0b5c") == "dragoman.replies.acme.0b5c"


@pytest.mark.parametrize(
    ("pattern", "subject", "is_matched"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.*", True),
        ("a.*", "a.", False),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.*", "ab.c", False),
        ("*", "a", False),
        ("*", "*", True),
    ],
)
def test_a_pattern_matches_exactly_its_subjects(pattern: str, subject: str, is_matched: bool) -> None:
    assert matches(pattern, subject) is is_matched


@given(st.sets(subjects), subjects | st.sampled_from(["a.*", "a.b.*", ".*"]), subjects)
def test_each_matching_subject_has_one_turn_beginning_behind_the_last(
    all_subjects: set[str], pattern: str, last: str
) -> None:
    def find(low: str, high: str) -> str | None:
        return min((subject for subject in all_subjects if low <= subject < high), default=None)

    matching = sorted(subject for subject in all_subjects if matches(pattern, subject))
    behind = [subject for subject in matching if subject > last]
    expected = behind + [subject for subject in matching if subject <= last]
    assert list(subjects_in_turn(find, pattern, last)) == expected
