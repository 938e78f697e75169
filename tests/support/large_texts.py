"""Texts with many passages."""

from __future__ import annotations


def large_text(word: str, kilobytes: int = 200) -> str:
    """A text of about so many kilobytes; each of its passages has `word`, and a number of its own."""
    return "\n\n".join(f"{word} n{number} " + "filler words here " * 40 for number in range(kilobytes * 1_000 // 735))
