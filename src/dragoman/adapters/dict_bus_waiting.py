"""The messages that wait to be delivered, subject by subject, and which subject is next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush

from dragoman.messaging.turns import subjects_in_turn


class WaitingMessages:
    """Numbers of messages by subject. A subject without any costs nothing."""

    def __init__(self) -> None:
        self._numbers: dict[str, set[int]] = {}
        self._heaps: dict[str, list[int]] = {}
        """The same numbers, the smallest first, and some that were discarded since."""
        self._subjects: list[str] = []
        """In order."""

    def add(self, subject: str, number: int) -> None:
        if subject not in self._numbers:
            self._numbers[subject], self._heaps[subject] = set(), []
            insort(self._subjects, subject)
        self._numbers[subject].add(number)
        heappush(self._heaps[subject], number)

    def discard(self, subject: str, number: int) -> None:
        """Has no effect on a number that does not wait."""
        numbers = self._numbers.get(subject, set())
        numbers.discard(number)
        if subject in self._numbers and not numbers:
            del self._numbers[subject], self._heaps[subject]
            del self._subjects[bisect_left(self._subjects, subject)]

    def pop(self, subject: str) -> int:
        """Take the first message of a subject that has one."""
        heap, numbers = self._heaps[subject], self._numbers[subject]
        while (number := heappop(heap)) not in numbers:
            pass
        self.discard(subject, number)
        return number

    def subjects_in_turn(self, pattern: str, last: str) -> Iterator[str]:
        """The subjects that a pattern matches, from behind `last` around to it. Ends with the first change."""
        return subjects_in_turn(self._find, pattern, last)

    def _find(self, low: str, high: str) -> str | None:
        place = bisect_left(self._subjects, low)
        found = self._subjects[place] if place < len(self._subjects) else None
        return found if found is not None and found < high else None
