"""The best texts are found without going through all that have a common word."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import log

import pytest

from dragoman.search import ranking
from dragoman.search.ranking import posting, rank
from dragoman.search.words import words_in

WORDS = [f"{first}{second}x" for first in "abcdefgh" for second in ("", "b", "bc", "bcd")]


class Texts:
    """Implements `Postings`, and counts what was read."""

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        self._counts = {number: Counter(text) for number, text in enumerate(texts)}
        self.texts = len(texts)
        self.words = sum(map(len, texts))
        self.read: Counter[str] = Counter()

    def texts_with(self, word: str) -> int:
        return sum(word in counts for counts in self._counts.values())

    def longer_words(self, word: str, most: int) -> list[tuple[str, int]]:
        found = {each for counts in self._counts.values() for each in counts if each.startswith(word) and each != word}
        return sorted(((each, self.texts_with(each)) for each in found), key=lambda each: (-each[1], each[0]))[:most]

    def postings(self, word: str) -> Iterable[int]:
        self.read[word] += 1
        return [words[word] for _, words in self.words_of([*self._counts]) if word in words]

    def words_of(self, numbers: Sequence[int]) -> Iterable[tuple[int, Mapping[str, int]]]:
        for number in numbers:
            counts = self._counts[number]
            yield number, {word: posting(number, count, counts.total()) for word, count in counts.items()}


def made(seed: int, texts: int = 200) -> Texts:
    chance = random.Random(seed)
    weights = [1 / (place + 1) for place in range(len(WORDS))]
    return Texts([chance.choices(WORDS, weights, k=chance.randint(5, 60)) for _ in range(texts)])


@pytest.mark.parametrize("few", [0, 20])
@pytest.mark.parametrize("lookups", [0, 20])
@pytest.mark.parametrize("seed", range(10))
def test_the_best_are_those_that_all_texts_would_give(
    monkeypatch: pytest.MonkeyPatch, seed: int, few: int, lookups: int
) -> None:
    texts, query = made(seed), " ".join(random.Random(seed).choices(WORDS, k=6))
    everything = rank(texts, query, 10_000)
    monkeypatch.setattr(ranking, "_FEW", few)
    monkeypatch.setattr(ranking, "_LOOKUPS_FOR_ONE_READ", lookups)
    for limit in (1, 3, 10):
        found = rank(texts, query, limit)
        assert [number for number, _ in found] == [number for number, _ in everything[:limit]]
        assert [score for _, score in found] == pytest.approx([score for _, score in everything[:limit]])


def test_a_common_word_is_not_read_if_it_can_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "_FEW", 10)
    texts = Texts([["common"]] * 500 + [["common", "rare"]] * 3)
    assert [number for number, _ in rank(texts, "common rare", 2)] == [500, 501]
    assert texts.read == {"rare": 1}


def test_the_score_is_that_of_bm25_as_a_share_of_the_highest() -> None:
    texts = Texts([["one"] * 3 + ["other"] * 13, ["other"] * 16, ["other"] * 16])
    ((number, score),) = rank(texts, "one absent", 5)
    one, absent = log(1 + (3 - 1 + 0.5) / (1 + 0.5)), log(1 + (3 - 0 + 0.5) / (0 + 0.5))
    bm25 = one * 3 * 2.2 / (3 + 1.2 * (0.25 + 0.75 * 16 / 16))
    assert (number, score) == (0, pytest.approx(bm25 / (2.2 * (one + absent))))


def test_counts_and_lengths_beyond_what_a_posting_holds_are_the_highest_it_holds() -> None:
    assert posting(5, 100, 10**6) == posting(5, 8, 127 * 8) == 6 * 1024 - 1
    assert posting(5, 1, 7) == 5 * 1024


def test_only_so_many_words_are_looked_for() -> None:
    texts = Texts([["needle"]])
    many = " ".join(f"w{number}" for number in range(64))
    assert len(words_in(f"{many} needle")) == 65
    assert rank(texts, f"{many} needle", 5) == []
    assert rank(texts, f"needle {many}", 5) != []
    assert rank(texts, "needle", 0) == []
