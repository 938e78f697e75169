"""Words of a title are joined with those of texts as if it were at the beginning of each."""

from __future__ import annotations

import random

from dragoman.search.ranking import MOST_COUNT, posting
from dragoman.search.titles import both, outline_of, packed, under, unpacked


def test_a_text_has_a_word_of_its_title_as_often_as_both_do() -> None:
    chance = random.Random(1)
    for _ in range(2_000):
        text, length, of_title = chance.randrange(1 << 25), chance.randrange(0, 2_000, 8), chance.randrange(0, 400, 8)
        own, titles = chance.randrange(1, 12), chance.randrange(1, 12)
        first = chance.randrange(1 << 20) << 25
        (joined,) = under(posting(first, titles, of_title), packed([outline_of(text, length)]))
        assert joined == posting(first + text, titles, length + of_title)
        together = min(own, MOST_COUNT) + min(titles, MOST_COUNT)
        assert both(posting(first + text, own, length), joined) == posting(first + text, together, length + of_title)


def test_outlines_are_stored_with_the_lowest_byte_first() -> None:
    assert packed([1, 1 << 31]) == b"\x01\0\0\0\0\0\0\x80"
    assert [*unpacked(b"\x01\0\0\0\0\0\0\x80")] == [1, 1 << 31]
