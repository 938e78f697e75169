"""Joins ranked lists of passages to one, by weighted reciprocal rank.

1. Scores of words and of vectors cannot be compared with each other, so ranks count: a passage gets
   `weight / (SMOOTHING + rank)` from each list that has it.
2. For words that is multiplied by how much of the question the passage covers, which its score tells. With a question
   whose words the documents do not use, the first ranks by words mean little. Vectors always have a nearest one, and
   their scores differ from model to model.
3. What few passages have, such as a name or a number, is not lost among those that are merely alike.
4. Weights and smoothing were chosen by measurement: docs/search-quality.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from dragoman.knowledge.index import Hit

WORDS_WEIGHT: Final = 1.25
VECTORS_WEIGHT: Final = 1.0
SMOOTHING: Final = 5
"""The larger, the less the first ranks are ahead of those behind them."""
COVERS_ALL: Final = 1 / 2.2
"""The score by words of a passage of average length that has each word of the question once."""


class Ranked(NamedTuple):
    """What one search has found, the best first, and how much that counts."""

    hits: Sequence[Hit]
    weight: float
    by_score: bool = False
    """Whether a hit counts as much as its score says that it covers of the question."""


def fuse(*lists: Ranked, smoothing: int = SMOOTHING) -> list[Hit]:
    """Every passage of the lists once, the best first; ties are in the order of their numbers.

    Scores are from 0 to 1, which is that of a passage at the top of every list that covers the whole question.
    """
    highest = sum(each.weight for each in lists) / (smoothing + 1)
    scores: dict[int, float] = {}
    for hits, weight, by_score in lists:
        for rank, hit in enumerate(hits, 1):
            share = weight * min(hit.score / COVERS_ALL, 1.0) if by_score else weight
            scores[hit.number] = scores.get(hit.number, 0.0) + share / (smoothing + rank) / highest
    return [Hit(number, score) for number, score in sorted(scores.items(), key=lambda each: (-each[1], each[0]))]


def keep_few(fused: Sequence[Hit], by_words: Collection[int], count: int) -> list[Hit]:
    """With all that words have found among the first `count`, unless that is more than half of these.

    A new passage has no vector yet, and a rare word in a long passage has a low score.
    """
    if len(by_words) > count // 2:
        return list(fused)
    others = [hit.number for hit in fused if hit.number not in by_words]
    first = {*by_words, *others[: count - len(by_words)]}
    return sorted(fused, key=lambda hit: hit.number not in first)
