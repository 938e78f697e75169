"""What a log line may contain: secrets taken out by key, and nothing that could forge or hide a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from dragoman.telemetry.tracebacks import Traceback

REDACTED = "[REDACTED]"
_DEEPEST = 64
_MOST_ITEMS = 10_000

# C0, DEL and C1 controls, line and paragraph separators, and the marks that reorder text on a terminal.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


MULTILINE = ("traceback", "stack")
"""Facts that have many lines. Their line ends stay, and JSON escapes them once."""


def sanitize(text: str) -> str:
    """`text` with every character that could break or disguise a line written as `\\uXXXX`."""
    if text.isprintable():
        return text
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def text_of(value: object) -> str:
    """`str(value)`, also for an object whose `__str__` raises."""
    try:
        return str(value)
    except Exception:
        return f"<str() of {type(value).__name__} failed>"


def one_line(text: str, most: int = 500) -> str:
    """`text` as one line of at most so many characters, with blanks in place of what cannot be printed."""
    line = "".join(character if character.isprintable() else " " for character in text[: most + 1])
    return line if len(line) <= most else line[: most - 1] + "…"


def sanitize_lines(text: str) -> str:
    """As `sanitize`, line by line."""
    return text if text.isprintable() else "\n".join(map(sanitize, text.split("\n")))


# Drawn as nothing although Unicode has them as letters, marks or symbols: fillers, variation selectors, blanks.
_BLANK = frozenset(
    (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164, 0xFFA0, *range(0xFE00, 0xFE10))
) | frozenset(range(0xE0100, 0xE01F0))


def show_all(text: str, keep: str = "") -> str:
    """`text` with every character that a reader would not see, or that reorders others, as a JSON escape.

    Characters in `keep` stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        json.dumps(each)[1:-1] if (not each.isprintable() or ord(each) in _BLANK) and each not in keep else each
        for each in text
    )


class Cleaner:
    """Redacts and sanitises copies; what it is given is never changed."""

    def __init__(self, redact_keys: Iterable[str]) -> None:
        self._secret = frozenset(key.lower() for key in redact_keys)

    def redact(self, value: Any) -> Any:
        """A copy of `value` with the values under secret keys replaced, at any depth."""
        return _Copy(self._secret, lambda text: text).of(value, _DEEPEST)

    def clean(self, value: Any) -> Any:
        """A redacted copy of `value` with every string sanitised."""
        return _Copy(self._secret, sanitize).of(value, _DEEPEST)

    def has_no_secret_keys(self, keys: Iterable[str]) -> bool:
        """Whether nothing under these keys would be redacted."""
        return self._secret.isdisjoint(str(key).lower() for key in keys)


class _Copy:
    """One copy under way. It is bounded in depth and in size: a value that shares its parts may have no end."""

    def __init__(self, secret: frozenset[str], text: Any) -> None:
        self._secret = secret
        self._text = text
        self._left = _MOST_ITEMS

    def of(self, value: Any, depth: int) -> Any:
        text = self._text
        if isinstance(value, str):
            return text(str(value))
        if value.__class__ in _PLAIN:
            return value
        self._left -= 1
        if self._left < 0:
            return "[too much]"
        if depth == 0:
            return "[too deep]"
        if isinstance(value, Mapping):
            return {text(str(key)): self._under(str(key), item, depth - 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.of(item, depth - 1) for item in value]
        return text(f"<{type(value).__name__}>")

    def _under(self, key: str, value: Any, depth: int) -> Any:
        """A copy of what stands under a key."""
        if key.lower() in self._secret:
            return REDACTED
        if key in MULTILINE and isinstance(value, str) and self._text is sanitize:
            return value.map(sanitize_lines) if isinstance(value, Traceback) else sanitize_lines(str(value))
        return self.of(value, depth)


_PLAIN = frozenset({int, float, bool, type(None)})
