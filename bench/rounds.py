"""Turns: whatever is compared is done round after round, and never twice in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """Whoever comes first in one round comes last in the next, as what ran before may tell."""
    first = turn % len(items)
    return [*items[first:], *items[:first]]
