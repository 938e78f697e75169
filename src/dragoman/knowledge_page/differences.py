"""What two texts differ in, line by line, in bounded time and space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, Final, TypeAlias

from dragoman.knowledge_page.rendering import visible

MOST_COMPARED: Final = 2_000
"""Lines of either text that are compared with each other. Of more, all are removed and all are added."""
MOST_ROWS: Final = 1_000
LONGEST_LINE: Final = 2_000
"""Characters of a line that are shown, and within which words are compared."""
_CONTEXT: Final = 3
_Opcode: TypeAlias = tuple[str, int, int, int, int]


def difference(before: str, after: str) -> dict[str, Any]:
    """Rows of the lines that differ, those around them, and the numbers of lines that are left out between them."""
    old, new = before.split("\n") if before else [], after.split("\n") if after else []
    opcodes = _opcodes(old, new)
    rows = [*islice(_rows(old, new, opcodes), MOST_ROWS + 1)]
    return {
        "rows": rows[:MOST_ROWS],
        "isCut": len(rows) > MOST_ROWS,
        "removed": sum(end - start for tag, start, end, _, _ in opcodes if tag != "equal"),
        "added": sum(end - start for tag, _, _, start, end in opcodes if tag != "equal"),
    }


def _opcodes(old: Sequence[str], new: Sequence[str]) -> list[_Opcode]:
    """As `SequenceMatcher.get_opcodes`, for texts of any length."""
    shorter = min(len(old), len(new))
    head = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    tail = next((at for at in range(shorter - head) if old[-1 - at] != new[-1 - at]), shorter - head)
    middle = old[head : len(old) - tail], new[head : len(new) - tail]
    if max(map(len, middle)) > MOST_COMPARED:
        found: list[_Opcode] = [("replace", 0, len(middle[0]), 0, len(middle[1]))]
    else:
        found = list(SequenceMatcher(None, *middle).get_opcodes())
    moved = [(tag, i + head, j + head, k + head, m + head) for tag, i, j, k, m in found]
    ends = ("equal", 0, head, 0, head), ("equal", len(old) - tail, len(old), len(new) - tail, len(new))
    return [each for each in (ends[0], *moved, ends[1]) if each[1] < each[2] or each[3] < each[4]]


def _rows(old: Sequence[str], new: Sequence[str], opcodes: Sequence[_Opcode]) -> Iterator[dict[str, Any]]:
    for number, (tag, start, end, new_start, new_end) in enumerate(opcodes):
        if tag == "equal":
            first = 0 if number == 0 else _CONTEXT
            last = 0 if number == len(opcodes) - 1 else _CONTEXT
            yield from _unchanged(old, start, end, new_start - start, first, last)
            continue
        lines, added = old[start:end], new[new_start:new_end]
        is_pair = len(lines) == len(added)  # Lines that were changed one by one, most likely.
        for at, line in enumerate(lines):
            yield {"op": "-", "old": start + at + 1, **_marked(line, added[at] if is_pair else None)}
        for at, line in enumerate(added):
            yield {"op": "+", "new": new_start + at + 1, **_marked(line, lines[at] if is_pair else None)}


def _unchanged(
    lines: Sequence[str], start: int, end: int, shift: int, first: int, last: int
) -> Iterator[dict[str, Any]]:
    """The first and the last of the lines that are the same in both texts, and how many there are between them."""
    left_out = range(start + first, max(start + first, end - last))
    for at in range(start, end):
        if at not in left_out:
            yield {"op": " ", "old": at + 1, "new": at + shift + 1, "text": _shown(lines[at])}
        elif at == left_out[0]:
            yield {"op": "…", "count": len(left_out)}


def _shown(line: str) -> str:
    return visible(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…")


def _marked(line: str, other: str | None) -> dict[str, Any]:
    """A line, and the places in it whose words the other one does not have."""
    if other is None or max(len(line), len(other)) > LONGEST_LINE:
        return {"text": _shown(line)}
    line = visible(line)
    words, others = line.split(" "), visible(other).split(" ")
    marks, position = [], 0
    for tag, start, end, _, _ in SequenceMatcher(None, words, others).get_opcodes():
        length = sum(map(len, words[start:end])) + max(0, end - start - 1)
        if tag in ("replace", "delete"):
            marks.append([position, position + length])
        position += length + 1 if end > start else 0
    return {"text": line, "marks": marks}
