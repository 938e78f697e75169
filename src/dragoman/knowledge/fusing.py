"""Joins ranked lists of passages to one, by weighted reciprocal rank.

Scores of words and of vectors cannot be compared with each other, so only the ranks count: a passage gets
`weight / (SMOOTHING + rank)` from each list that has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from dragoman.knowledge.index import Hit

WORDS_WEIGHT: Final = 1.0
VECTORS_WEIGHT: Final = 1.0
SMOOTHING: Final = 60
"""The larger, the less the first ranks are ahead of those behind them."""


class Ranked(NamedTuple):
    """What one search has found, the best first, and how much that counts."""

    hits: Sequence[Hit]
    weight: float


def fuse(*lists: Ranked) -> list[Hit]:
    """Every passage of the lists once, the best first; ties are in the order of their numbers.

    Scores are from 0 to 1, which is that of a passage at the top of every list.
    """
    highest = sum(each.weight for each in lists) / (SMOOTHING + 1)
    scores: dict[int, float] = {}
    for hits, weight in lists:
        for rank, hit in enumerate(hits, 1):
            scores[hit.number] = scores.get(hit.number, 0.0) + weight / (SMOOTHING + rank) / highest
    return [Hit(number, score) for number, score in sorted(scores.items(), key=lambda each: (-each[1], each[0]))]
