"""How texts are found by the words of a title that they have in common, which are kept once.

1. A title has postings of its own. They are joined with those of its texts when something is searched, as if the title
   were at the beginning of each text.
2. What has to be known of the texts is their outline: a number of 32 bits for each, which is its number among those of
   the title, and below it, in 7 bits, its length as a posting has it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator

from dragoman.search.ranking import LENGTH_BITS, MOST_COUNT, POSTING_BITS, posting

MOST_TEXTS = 1 << 32 - LENGTH_BITS
"""Under one title."""
_STEPS = (1 << LENGTH_BITS) - 1
_COUNT = MOST_COUNT - 1


def outline_of(text: int, length: int) -> int:
    """What is kept of a text under a title."""
    return text << LENGTH_BITS | posting(0, 1, length)


def packed(outlines: Iterable[int]) -> bytes:
    """Outlines as they are stored."""
    numbers = array("I", outlines)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def unpacked(stored: bytes) -> array[int]:
    """The numbers that were stored by `packed`, on whatever machine."""
    numbers = array("I")
    numbers.frombytes(stored)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def under(title: int, stored: bytes) -> Iterator[int]:
    """The postings that texts have of a word of their title, by the posting of that, numbered as the first text."""
    count = title & _COUNT << LENGTH_BITS
    first, length = title >> POSTING_BITS, title & _STEPS
    for outline in unpacked(stored):
        steps = min((outline & _STEPS) + length, _STEPS)
        yield first + (outline >> LENGTH_BITS) << POSTING_BITS | count | steps


def both(own: int, of_title: int) -> int:
    """The posting of a word that is in a text and in its title."""
    count = (own >> LENGTH_BITS & _COUNT) + (of_title >> LENGTH_BITS & _COUNT) + 1
    return of_title & ~(_COUNT << LENGTH_BITS) | min(count, _COUNT) << LENGTH_BITS
