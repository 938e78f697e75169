"""What the tests of tools share."""

from __future__ import annotations

from typing import Any

from dragoman.search.words import FEWEST_LETTERS_OF_A_BEGINNING


class Counted:
    """A value that counts how often it is written as JSON."""

    length = 1002
    """Bytes that it takes."""

    def __init__(self) -> None:
        self.times = 0

    def model_dump(self, **options: Any) -> str:
        return str(self)

    def __str__(self) -> str:
        self.times += 1
        return "x" * (self.length - 2)


def beginnings_of(word: str) -> tuple[str, ...]:
    """Everything that finds `word` when it is looked for."""
    return (*(word[:length] for length in range(FEWEST_LETTERS_OF_A_BEGINNING, len(word))), word)
