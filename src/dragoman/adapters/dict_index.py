"""What `DictMemories` finds entries by: values in order, and the words that begin with something.

Among many entries most of the time goes into reaching for what lies anywhere in memory, so there are few things to
reach for, and each is one object.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, MutableSequence
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, TypeVar

from dragoman.search.words import FEWEST_LETTERS_OF_A_BEGINNING

if TYPE_CHECKING:
    Array = array[int]
else:
    Array = array

T = TypeVar("T", str, int)

LONGEST_RUN = 1000


class SortedRuns(Generic[T]):
    """Different values in ascending order, in runs of which none is empty: what comes or goes moves only its run."""

    __slots__ = ("runs", "starts")

    def __init__(self) -> None:
        self.runs: list[MutableSequence[T]] = []
        self.starts: list[T] = []
        """What separates each run from the one before."""

    def add(self, value: T) -> None:
        if not self.runs:
            self.append([value])
            return
        at = self._run_of(value)
        run = self.runs[at]
        run.insert(bisect_left(run, value), value)
        if len(run) > LONGEST_RUN:
            self.runs.insert(at + 1, run[LONGEST_RUN // 2 :])
            self.starts.insert(at + 1, run[LONGEST_RUN // 2])
            del run[LONGEST_RUN // 2 :]

    def take(self, value: T) -> None:
        """It need not be there, but something has to be."""
        at = self._run_of(value)
        run = self.runs[at]
        place = bisect_left(run, value)
        if place < len(run) and run[place] == value:
            del run[place]
            if not run:
                del self.runs[at], self.starts[at]

    def has(self, value: T) -> bool:
        """Something has to be there."""
        run = self.runs[self._run_of(value)]
        place = bisect_left(run, value)
        return place < len(run) and run[place] == value

    def append(self, run: MutableSequence[T]) -> None:
        """Values that are higher than all that are here."""
        self.runs.append(run)
        self.starts.append(run[0])

    def pop(self) -> MutableSequence[T]:
        self.starts.pop()
        return self.runs.pop()

    def copy(self) -> SortedRuns[T]:
        copy: SortedRuns[T] = SortedRuns()
        copy.runs = [run[:] for run in self.runs]
        copy.starts = self.starts[:]
        return copy

    def upwards(self, start: T) -> Iterator[T]:
        """From `start` on."""
        for at in range(self._run_of(start), len(self.runs)):
            run = self.runs[at]
            for place in range(bisect_left(run, start), len(run)):
                yield run[place]

    def downwards(self, end: T) -> Iterator[T]:
        """From the one before `end`. Something has to be there."""
        for at in range(self._run_of(end), -1, -1):
            run = self.runs[at]
            for place in range(bisect_left(run, end) - 1, -1, -1):
                yield run[place]

    def _run_of(self, value: T) -> int:
        return max(bisect_right(self.starts, value) - 1, 0)


class Numbers(Array):
    """The numbers of the entries with words that begin alike, in ascending order.

    Of a common word's these are the last, and the others are in `before`. `below` them, by the next letter, are those
    of entries whose words also go on alike.
    """

    __slots__ = ("before", "beginning", "below", "length")

    before: SortedRuns[int] | None
    beginning: str
    length: int
    below: dict[str, Numbers] | None

    def put(self, number: int) -> None:
        """There is no higher one; this one may be there."""
        if self[-1] == number:
            return
        if len(self) == LONGEST_RUN:
            self.before = self.before or SortedRuns()
            self.before.append(self[:])
            del self[:]
        self.append(number)

    def take(self, number: int) -> None:
        """It need not be there."""
        if self.before is not None and number < self[0]:
            self.before.take(number)
        else:
            place = bisect_left(self, number)
            if place < len(self) and self[place] == number:
                del self[place]
                if not self and self.before is not None:
                    self.extend(self.before.pop())
        if self.before is not None and not self.before.runs:
            self.before = None

    def has(self, number: int) -> bool:
        if self.before is not None and number < self[0]:
            return self.before.has(number)
        place = bisect_left(self, number)
        return place < len(self) and self[place] == number

    def downwards(self, end: int) -> Iterator[int]:
        """From the one before `end`."""
        for place in range(bisect_left(self, end) - 1, -1, -1):
            yield self[place]
        if self.before is not None:
            yield from self.before.downwards(end)

    @property
    def rough_size(self) -> int:
        """Nothing is added up."""
        return len(self) + (len(self.before.runs) * LONGEST_RUN if self.before else 0)


class WordTree:
    """The numbers of the entries that a word finds: those with a word that begins with it.

    A tree, in which words share the way as far as they begin alike. There is something in it only where words part or
    end, so that an entry is in a few places and not in one for each letter.
    """

    def __init__(self) -> None:
        self._tops: dict[str, Numbers] = {}

    def add(self, word: str, number: int) -> None:
        """There is no higher number."""
        beside, letters = self._tops, word[:FEWEST_LETTERS_OF_A_BEGINNING]
        while (numbers := beside.get(letters)) is not None:
            if not word.startswith(numbers.beginning):
                numbers = beside[letters] = _parted(numbers, word)
            numbers.put(number)
            if numbers.length == len(word):
                return
            if numbers.below is None:
                numbers.below = {}
            beside, letters = numbers.below, word[numbers.length]
        beside[letters] = _numbers(word, array("q", (number,)))

    def take(self, word: str, number: int) -> None:
        """Once for each word that it was added with: what several of them begin with goes with the first."""
        beside: dict[str, Numbers] | None = self._tops
        letters = word[:FEWEST_LETTERS_OF_A_BEGINNING]
        while beside is not None and (numbers := beside.get(letters)) is not None:
            numbers.take(number)
            if not numbers:
                del beside[letters]  # With all that is below.
                return
            if numbers.length == len(word):
                return
            beside, letters = numbers.below, word[numbers.length]

    def find(self, word: str) -> Numbers | None:
        numbers = self._tops.get(word[:FEWEST_LETTERS_OF_A_BEGINNING])
        while numbers is not None and not numbers.beginning.startswith(word):
            if numbers.below is None or not word.startswith(numbers.beginning):
                return None
            numbers = numbers.below.get(word[numbers.length])
        return numbers


def _numbers(beginning: str, last: array[int], before: SortedRuns[int] | None = None) -> Numbers:
    made = Numbers("q", last)
    made.beginning, made.length = beginning, len(beginning)
    made.before = before
    made.below = None
    return made


def _parted(numbers: Numbers, word: str) -> Numbers:
    """What comes above `numbers` when a word is added that begins like theirs but does not go on like them."""
    pairs = zip(numbers.beginning, word, strict=False)
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    above = _numbers(word[:alike], numbers, numbers.before and numbers.before.copy())
    above.below = {numbers.beginning[alike]: numbers}
    return above
