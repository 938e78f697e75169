"""Lines out of chunks. What is held back is never more than one message may weigh."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias


class Oversized(Enum):
    """Stands for a line that was longer than the limit and has been dropped."""

    LINE = "line"


Line: TypeAlias = bytes | Oversized


class LineBuffer:
    """Cuts a byte stream into lines of at most `limit` bytes, wherever the chunks happen to end."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: list[bytes] = []
        self._size = 0
        self._dropping = False

    @property
    def is_within_line(self) -> bool:
        """Whether the last bytes were not the end of a line."""
        return self._dropping or bool(self._held)

    def feed(self, data: bytes) -> list[Line]:
        """Lines that are complete now, without their line ends; `Oversized.LINE` as soon as one is too long."""
        if not self.is_within_line and len(data) <= self._limit and data.endswith(b"\n"):
            whole: list[Line] = data.split(b"\n")  # type: ignore[assignment]
            whole.pop()
            return whole
        first, *rest = data.split(b"\n") if b"\n" in data else (data,)  # `in` is ten times as fast.
        lines: list[Line] = []
        self._hold(first, lines)
        for piece in rest:
            if not self._dropping:
                lines.append(b"".join(self._held) if len(self._held) != 1 else self._held[0])
            self._dropping = False
            self._held.clear()
            self._size = 0
            self._hold(piece, lines)
        return lines

    def _hold(self, piece: bytes, lines: list[Line]) -> None:
        if self._dropping or not piece:
            return
        self._size += len(piece)
        if self._size > self._limit:
            self._dropping = True
            self._held.clear()
            lines.append(Oversized.LINE)
        else:
            self._held.append(piece)
