"""How tools give long things part by part, and what those weigh in an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

ANSWER_FRAME = 900
"""What an answer weighs around its result, at most."""


class ListResponse(Struct, rename="camel", kw_only=True):
    """A part of a list of `total` items, from `offset` on; `has_more` exactly when there are items after this part.

    Raises `ValueError` for numbers that no list can have.
    """

    items: Sequence[Any]
    total: int
    limit: int
    """The most items of a part."""
    offset: int
    has_more: bool = False
    next_cursor: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        _check(self.total, self.offset)
        if self.limit < 1:
            raise ValueError(f"limit must be at least 1, not {self.limit}")
        self.has_more = self.offset + len(self.items) < self.total


class TextResponse(Struct, rename="camel", kw_only=True):
    """A part of a text of `total` characters, from `offset` on."""

    text: str
    total: int
    offset: int
    has_more: bool = False
    next_cursor: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        _check(self.total, self.offset)
        self.has_more = self.offset + len(self.text) < self.total


def _check(total: int, offset: int) -> None:
    if total < 0 or offset < 0:
        raise ValueError(f"total and offset must be at least 0, not {total} and {offset}")


def weight_in_answer(value: Any) -> int:
    """What a result adds to an answer, which has it twice: as text inside a string, and as it is."""
    encoded = msgspec.json.encode(value)
    return 2 * len(encoded) + encoded.count(b'"') + encoded.count(b"\\")
