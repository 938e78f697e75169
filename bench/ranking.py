"""How good rankings of documents are: recall and mean reciprocal rank, and weights chosen by cross-validation.

1. Recall: the share of questions with an answering document among the first five.
2. Mean reciprocal rank: the mean of 1 / rank of the first answering document, 0 where there is none.
3. Cross-validation: the questions are dealt to five folds. Each fold is measured with the setting that is best for the
   other four, so no question has a say in the setting that it is measured with. The mean is taken over ten deals.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

S = TypeVar("S")

FIRST = 5
FOLDS = 5
_DEALS = 10


class Quality(NamedTuple):
    """Of one ranking, or the mean over many."""

    recall: float
    mrr: float


def quality_of(ranked: Sequence[str], answers: Collection[str]) -> Quality:
    """Of the documents that were found for one question, the best first."""
    for rank, document in enumerate(ranked, 1):
        if document in answers:
            return Quality(float(rank <= FIRST), 1 / rank)
    return Quality(0.0, 0.0)


def mean_of(found: Iterable[Quality]) -> Quality:
    recalls, ranks = zip(*found, strict=True)
    return Quality(statistics.fmean(recalls), statistics.fmean(ranks))


def best_setting(qualities: Mapping[S, Sequence[Quality]], questions: Iterable[int]) -> S:
    """The setting with the highest recall and rank together for these questions; the first of those that are equal."""
    chosen = list(questions)
    return max(qualities, key=lambda setting: sum(mean_of(qualities[setting][number] for number in chosen)))


def held_out(qualities: Mapping[S, Sequence[Quality]]) -> list[Quality]:
    """For each question the mean quality under the settings that the questions of other folds chose."""
    count = len(next(iter(qualities.values())))
    found: list[list[Quality]] = [[] for _ in range(count)]
    for seed in range(_DEALS):
        order = list(range(count))
        random.Random(seed).shuffle(order)
        for fold in range(FOLDS):
            held = set(order[fold::FOLDS])
            setting = best_setting(qualities, (number for number in order if number not in held))
            for number in held:
                found[number].append(qualities[setting][number])
    return [mean_of(each) for each in found]
