"""What two texts differ in, line by line, in bounded time and space."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import Match, SequenceMatcher
from itertools import accumulate, islice
from typing import Any, Final, TypeAlias

from dragoman.knowledge_page.rendering import visible
from dragoman.knowledge_page.work import Work

MOST_COMPARED: Final = 2_000
"""Lines of either text that are compared with each other. Of more, all are removed and all are added."""
MOST_STEPS: Final = 2_000_000
"""Comparisons of two lines, or of two words of them. The rest is taken as a whole then."""
MOST_LINES: Final = 100_000
"""Lines of either text that are looked at. Of a longer text, all are removed or added, unless both are the same."""
MOST_ROWS: Final = 1_000
LONGEST_LINE: Final = 2_000
"""Characters of a line that are shown, and within which words are compared."""
_CONTEXT: Final = 3
_EACH_SEARCH: Final = 20
"""Steps of a search for the longest match, beside its comparisons."""
_Opcode: TypeAlias = tuple[str, int, int, int, int]


def difference(before: str, after: str, work: Work | None = None) -> dict[str, Any]:
    """Rows of the lines that differ, those around them, and the numbers of lines that are left out between them.

    It takes its time: run it in a thread. Raises `Aborted` if nobody waits for it any longer.
    """
    work = work or Work(MOST_STEPS)
    if max(before.count("\n"), after.count("\n")) >= MOST_LINES:
        return _replaced(before, after, work)
    old, new = _lines(before), _lines(after)
    opcodes = _opcodes(old, new, work)
    rows = [*islice(_rows(old, new, opcodes, work), MOST_ROWS + 1)]
    return {
        "rows": rows[:MOST_ROWS],
        "isCut": len(rows) > MOST_ROWS,
        "removed": sum(end - start for tag, start, end, _, _ in opcodes if tag != "equal"),
        "added": sum(end - start for tag, _, _, start, end in opcodes if tag != "equal"),
    }


def _lines(text: str) -> list[str]:
    return text.split("\n") if text else []


def _count(text: str) -> int:
    return text.count("\n") + 1 if text else 0


def _replaced(before: str, after: str, work: Work) -> dict[str, Any]:
    """For texts with too many lines to have them all in a list."""
    if before == after:
        return {"rows": [{"op": "…", "count": _count(before)}], "isCut": False, "removed": 0, "added": 0}
    old, new = (text.split("\n", MOST_ROWS)[:MOST_ROWS] if text else [] for text in (before, after))
    rows = [*islice(_rows(old, new, [("replace", 0, len(old), 0, len(new))], work), MOST_ROWS)]
    return {"rows": rows, "isCut": True, "removed": _count(before), "added": _count(after)}


def _opcodes(old: Sequence[str], new: Sequence[str], work: Work) -> list[_Opcode]:
    """As `SequenceMatcher.get_opcodes`, for texts of any length."""
    shorter = min(len(old), len(new))
    head = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    tail = next((at for at in range(shorter - head) if old[-1 - at] != new[-1 - at]), shorter - head)
    middle = old[head : len(old) - tail], new[head : len(new) - tail]
    if max(map(len, middle)) > MOST_COMPARED:
        found: list[_Opcode] = [("replace", 0, len(middle[0]), 0, len(middle[1]))]
    else:
        found = list(_Matcher(*middle, work).get_opcodes())
    moved = [(tag, i + head, j + head, k + head, m + head) for tag, i, j, k, m in found]
    ends = ("equal", 0, head, 0, head), ("equal", len(old) - tail, len(old), len(new) - tail, len(new))
    return [each for each in (ends[0], *moved, ends[1]) if each[1] < each[2] or each[3] < each[4]]


class _Matcher(SequenceMatcher[int]):
    """Matches pieces of two texts. `SequenceMatcher` takes the third power of their number, at the worst."""

    def __init__(self, old: Sequence[str], new: Sequence[str], work: Work) -> None:
        numbers: dict[str, int] = {}  # A long piece is looked at once.
        one, other = ([numbers.setdefault(each, len(numbers)) for each in pieces] for pieces in (old, new))
        super().__init__(None, one, other)
        self._work = work
        places: dict[int, list[int]] = self.b2j  # type: ignore[attr-defined]  # Documented, and not in typeshed.
        self._compared = [0, *accumulate(1 + len(places.get(each, ())) for each in one)]
        """By how many of the first pieces: how many comparisons a search among these makes."""

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        """None if there is not enough work left to look for it."""
        compared = self._compared[-1 if ahi is None else ahi] - self._compared[alo]
        if not self._work.spend(_EACH_SEARCH + compared):
            return Match(alo, blo, 0)
        return super().find_longest_match(alo, ahi, blo, bhi)


def _rows(old: Sequence[str], new: Sequence[str], opcodes: Sequence[_Opcode], work: Work) -> Iterator[dict[str, Any]]:
    for number, (tag, start, end, new_start, new_end) in enumerate(opcodes):
        if tag == "equal":
            first = 0 if number == 0 else _CONTEXT
            last = 0 if number == len(opcodes) - 1 else _CONTEXT
            yield from _unchanged(old, start, end, new_start - start, first, last)
            continue
        lines, added = old[start:end], new[new_start:new_end]
        is_pair = len(lines) == len(added)  # Lines that were changed one by one, most likely.
        for at, line in enumerate(lines):
            yield {"op": "-", "old": start + at + 1, **_marked(line, added[at] if is_pair else None, work)}
        for at, line in enumerate(added):
            yield {"op": "+", "new": new_start + at + 1, **_marked(line, lines[at] if is_pair else None, work)}


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


def _marked(line: str, other: str | None, work: Work) -> dict[str, Any]:
    """A line, and the places in it whose words the other one does not have."""
    if other is None or max(len(line), len(other)) > LONGEST_LINE or not work.spend(len(line) + len(other)):
        return {"text": _shown(line)}
    line = visible(line)
    words, others = line.split(" "), visible(other).split(" ")
    marks, position = [], 0
    for tag, start, end, _, _ in _Matcher(words, others, work).get_opcodes():
        length = sum(map(len, words[start:end])) + max(0, end - start - 1)
        if tag in ("replace", "delete"):
            marks.append([position, position + length])
        position += length + 1 if end > start else 0
    return {"text": line, "marks": marks}
