"""Which texts fit some words best: BM25, over any index that has the postings of words.

1. A posting is a number: that of a text, how often the word is in it (up to 8 times), and how long the text is (in
   steps of 8 words, up to 1,016). So nothing else has to be looked up in order to score a text.
2. A word that is looked for also finds the most common longer words that begin with it, for half of the score; a text
   that has the word itself gets what that is worth, and nothing more.
3. The rarest words come first. Once no text that has only the remaining, common words can be among the best, those are
   looked up in the texts found so far, instead of going through all that have them. The result is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest, nsmallest
from math import log
from typing import NamedTuple, Protocol

from dragoman.search.words import finds_longer_words, words_in

POSTING_BITS = 10
MOST_LONGER_WORDS = 16
_COUNT_BITS, LENGTH_BITS = 3, 7
MOST_COUNT = 1 << _COUNT_BITS
_LENGTH_STEP = 8
_WITHIN = (1 << POSTING_BITS) - 1
_MOST_WORDS = 64
_FEW = 1000
"""Texts that have a word; of so few, all are looked at."""
_LOOKUPS_FOR_ONE_READ = 20
_LONGER_FOR_EXACT = 0.5
_K1, _B = 1.2, 0.75


def posting(number: int, count: int, length: int) -> int:
    """What is kept of a word in a text. Those of a text are in the order of the counts."""
    steps = min(length // _LENGTH_STEP, (1 << LENGTH_BITS) - 1)
    return number << POSTING_BITS | (min(count, MOST_COUNT) - 1) << LENGTH_BITS | steps


class Postings(Protocol):
    """The words of one tenant's texts."""

    @property
    def texts(self) -> int:
        """How many there are."""
        ...

    @property
    def words(self) -> int:
        """How many words they have together."""
        ...

    def texts_with(self, word: str) -> int: ...

    def longer_words(self, word: str, most: int) -> Sequence[tuple[str, int]]:
        """Words that begin with `word` and are longer, with how many texts have each; the most common ones."""
        ...

    def postings(self, word: str) -> Iterable[int]:
        """The postings of a word, of those texts that may be found."""
        ...

    def words_of(self, numbers: Sequence[int]) -> Iterable[tuple[int, Mapping[str, int]]]:
        """By the number of a text, the posting of each of its words."""
        ...


class _LookedFor(NamedTuple):
    """A word of the query, with what it and the longer ones are worth."""

    texts: int
    word: str
    worth: float
    longer: tuple[str, ...]
    longer_worth: float
    most: float
    """The worth that the word has, or would have if a text had it."""


def rank(index: Postings, text: str, limit: int) -> list[tuple[int, float]]:
    """The texts that fit `text` best, and their scores; the lower number comes first where these are equal.

    A score is from 0 to 1: a share of what a text could get that has all words, and nothing but these. Words that
    no text has count, so that the score tells how much of the query a text covers.
    """
    asked = [_look_for(index, word) for word in words_in(text)[:_MOST_WORDS]]
    looked_for = sorted(each for each in asked if each.texts)
    if not looked_for or limit < 1:
        return []
    parts = _parts(index.words / index.texts)
    bounds = [max(each.worth, each.longer_worth) * max(parts) for each in looked_for]
    scores: dict[int, float] = {}
    for place, each in enumerate(looked_for):
        if each.texts > _FEW and len(scores) >= limit:
            least, rest = nlargest(limit, scores.values())[-1], sum(bounds[place:])
            # A little more than the sum: it is rounded in another order than the scores.
            if rest * 1.000001 < least:
                scores = {number: score for number, score in scores.items() if score + rest * 1.000001 >= least}
                _add_to(scores, index, looked_for[place:], parts)
                break
        for number, score in _found(index, each, parts).items():
            scores[number] = scores.get(number, 0.0) + score
    best = nsmallest(limit, scores.items(), key=lambda item: (-item[1], item[0]))
    most = (_K1 + 1) * sum(each.most for each in asked)
    return [(number, score / most) for number, score in best]


def _look_for(index: Postings, word: str) -> _LookedFor:
    exact = index.texts_with(word)
    longer = index.longer_words(word, MOST_LONGER_WORDS) if finds_longer_words(word) else ()
    texts = exact + sum(count for _, count in longer)
    most = _rarity(index.texts, exact)
    longer_worth = _LONGER_FOR_EXACT * _rarity(index.texts, min(texts, index.texts))
    return _LookedFor(texts, word, most if exact else 0.0, tuple(each for each, _ in longer), longer_worth, most)


def _rarity(texts: int, count: int) -> float:
    return log(1 + (texts - count + 0.5) / (count + 0.5))


def _parts(average: float) -> list[float]:
    """What each combination of count and length makes of a word's worth."""
    steps = range(1 << LENGTH_BITS)
    lengths = [_K1 * (1 - _B + _B * step * _LENGTH_STEP / max(average, 1.0)) for step in steps]
    return [count * (_K1 + 1) / (count + length) for count in range(1, MOST_COUNT + 1) for length in lengths]


def _found(index: Postings, each: _LookedFor, parts: Sequence[float]) -> dict[int, float]:
    found: dict[int, float] = {}
    worths = [each.longer_worth * part for part in parts]
    for longer in each.longer:
        for posted in index.postings(longer):
            number, score = posted >> POSTING_BITS, worths[posted & _WITHIN]
            if score > found.get(number, 0.0):
                found[number] = score
    if each.worth:
        worths = [each.worth * part for part in parts]
        found.update([(posted >> POSTING_BITS, worths[posted & _WITHIN]) for posted in index.postings(each.word)])
    return found


def _add_to(scores: dict[int, float], index: Postings, rest: Sequence[_LookedFor], parts: Sequence[float]) -> None:
    """Add what the remaining words are worth, for the texts that have scores."""
    if len(scores) * _LOOKUPS_FOR_ONE_READ > sum(each.texts for each in rest):
        for each in rest:
            found = _found(index, each, parts)
            for number in scores:
                scores[number] += found.get(number, 0.0)
        return
    for number, words in index.words_of(sorted(scores)):
        for each in rest:
            if each.word in words:
                scores[number] += each.worth * parts[words[each.word] & _WITHIN]
            else:
                has = [parts[words[longer] & _WITHIN] for longer in each.longer if longer in words]
                scores[number] += each.longer_worth * max(has, default=0.0)
