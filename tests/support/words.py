"""Words and what finds them."""

from __future__ import annotations

from dragoman.search.words import FEWEST_LETTERS_OF_A_BEGINNING


def beginnings_of(word: str) -> tuple[str, ...]:
    """Everything that finds `word` when it is looked for."""
    return (*(word[:length] for length in range(FEWEST_LETTERS_OF_A_BEGINNING, len(word))), word)
