"""How much work it is to decode one message, which is known from its bytes before any of it is done.

A message of ten megabytes can hold one long string, or three million empty arrays that take a hundred times as long to
decode and sixty times its memory. Numbers near the ends of what a float can hold, such as `1e-320`, take as long as a
hundred others. What is within strings does not count.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import force_setattr

MOST_LONG_EXPONENTS = 10_000
"""Numbers with an exponent of three digits or more."""
_QUOTE = b'"'
_OPENINGS, _COMMAS = (b"[", b"{"), (b",",)
_UNMARKED = bytes(set(range(256)).difference(b"[{,0123456789"))
_PIECE = 64 * 1024
_PER_QUOTE = 2048
_SMALL = 128 * 1024
_NUMBERS = bytes(
    mark if mark in b'"\\0e-' else ord("0") if mark in b"123456789" else b" e-"[1 + b"E+".find(mark)]
    for mark in range(256)
)
"""Digits are 0, exponents e and signs -; quotes and escapes stay, and everything else is a space."""
_LONG_EXPONENTS = (b"0e000", b"0e-000")


class Shape(Struct, frozen=True):
    """The most that one message may consist of; None: any number."""

    containers: int | None = None
    """Arrays and objects."""
    elements: int | None = None
    """Items of arrays and members of objects, but for the first of each."""
    sure_bytes: int = 0
    """A message of so many bytes is not looked at: it cannot be beyond these limits, and does not take long."""

    def __post_init__(self) -> None:
        containers = sys.maxsize if self.containers is None else 2 * self.containers + 1
        elements = sys.maxsize if self.elements is None else self.elements
        force_setattr(self, "sure_bytes", min(containers, elements, _SMALL))

    def excess(self, message: bytes) -> str | None:
        """What the message has too many of; None when it is within the limits."""
        if len(message) > self.sure_bytes:
            message = _without_long_strings(message)
        if len(message) <= self.sure_bytes:
            return None
        marks = message.translate(None, _UNMARKED)
        if self.containers is not None and _has_more(message, marks, _OPENINGS, self.containers):
            return f"more than {self.containers} arrays and objects"
        if self.elements is not None and _has_more(message, marks, _COMMAS, self.elements):
            return f"more than {self.elements} items and members"
        if len(marks.translate(None, b"[{,")) <= 4 * MOST_LONG_EXPONENTS:  # Such a number has four digits or more.
            return None
        numbers = message.translate(_NUMBERS)
        if _has_more(numbers, numbers, _LONG_EXPONENTS, MOST_LONG_EXPONENTS):
            return f"more than {MOST_LONG_EXPONENTS} numbers with a long exponent"
        return None


def _without_long_strings(message: bytes) -> bytes:
    """A message of the same shape with empty strings, as far as a search for each quote costs less than to count."""
    kept: list[bytes] = []
    start, begin, quote = 0, -1, -1  # Of what is not in `kept`, of the string that is open, and of the last quote.
    for _ in range(len(message) // _PER_QUOTE):
        quote = message.find(_QUOTE, quote + 1)
        before = message[quote - 2 : quote]
        if quote < 0 or before == b"\\\\":  # Whether such a quote is escaped depends on how many more there are.
            break
        if begin < 0:
            begin = quote
        elif not before.endswith(b"\\"):
            kept.append(message[start : begin + 1])
            start, begin = quote, -1
    return b"".join((*kept, message[start:]))


def _has_more(message: bytes, among: bytes, marks: Sequence[bytes], most: int) -> bool:
    """Whether a message has more than `most` of these marks outside strings. `among` has all of them, in few bytes."""
    if _count(among, marks) <= most:  # Nearly always: those within strings included.
        return False
    kept = b"".join((*marks, b" ")) + _QUOTE
    others, found, inside = bytes(set(range(256)).difference(kept)), 0, 0
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


def _count(message: bytes, marks: Sequence[bytes]) -> int:
    return sum(message.count(mark) for mark in marks)


UNLIMITED = Shape()
