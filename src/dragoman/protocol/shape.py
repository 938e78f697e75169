"""How many objects one message may become, which is known from its bytes before any of them is made.

A message of ten megabytes can hold one long string, or three million empty arrays that take a hundred times as long to
decode and sixty times its memory. Brackets and commas within strings do not count.
"""

from __future__ import annotations

import sys

from msgspec import Struct
from msgspec.structs import force_setattr

from dragoman.config import LimitsConfig

_QUOTE = b'"'
_PIECE = 64 * 1024


class Shape(Struct, frozen=True):
    """The most that one message may consist of; None: any number."""

    containers: int | None = None
    """Arrays and objects."""
    elements: int | None = None
    """Items of arrays and members of objects, but for the first of each."""
    sure_bytes: int = 0
    """A message of so many bytes cannot be beyond the limits."""

    def __post_init__(self) -> None:
        containers = sys.maxsize if self.containers is None else 2 * self.containers + 1
        elements = sys.maxsize if self.elements is None else self.elements
        force_setattr(self, "sure_bytes", min(containers, elements))

    def excess(self, message: bytes) -> str | None:
        """What the message has too many of; None when it is within the limits."""
        if len(message) > self.sure_bytes:
            if self.containers is not None and _has_more(message, b"[{", self.containers):
                return f"more than {self.containers} arrays and objects"
            if self.elements is not None and _has_more(message, b",", self.elements):
                return f"more than {self.elements} items and members"
        return None


def _has_more(message: bytes, marks: bytes, most: int) -> bool:
    """Whether there are more than `most` of these characters outside strings."""
    if _count(message, marks) <= most:  # Nearly always: those within strings included.
        return False
    others, found, inside = _all_but(marks + _QUOTE), 0, 0
    message = message.replace(b"\\\\", b"").replace(b'\\"', b"")
    for begin in range(0, len(message), _PIECE):
        piece = message[begin : begin + _PIECE].translate(None, others)
        # Two quotes side by side hold nothing, or end one string and begin the next: nothing else changes without them.
        parts = piece.replace(b'""', b"").split(_QUOTE)
        found += _count(b"".join(parts[inside::2]), marks)
        if found > most:
            return True
        inside = (inside + len(parts) - 1) % 2
    return False


def _count(message: bytes, marks: bytes) -> int:
    return sum(message.count(mark) for mark in marks)


def _all_but(kept: bytes) -> bytes:
    return bytes(set(range(256)).difference(kept))


UNLIMITED = Shape()


def shape_in(limits: LimitsConfig) -> Shape:
    """What the settings allow."""
    return Shape(limits.max_message_containers, limits.max_message_elements)
