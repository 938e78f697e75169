"""How many steps a regular expression takes on a text: counted, as the engine of `re` takes them, by another one.

It knows what the patterns of this project use, and tries their parts in the same order as `re` does. The engine of `re`
does the same without telling, so it can only be timed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser
from typing import Any


def steps_of(pattern: re.Pattern[str], text: str) -> int:
    """The steps of finding all matches in a text, each of which begins behind the one before."""
    steps = _Steps(text, pattern.flags)
    parts = list(parser.parse(pattern.pattern, pattern.flags))
    at = 0
    while at <= len(text):
        end = next(steps.ends(parts, at), at)
        at = max(end, at + 1)
    return steps.count


class _Steps:
    def __init__(self, text: str, flags: int) -> None:
        self.count = 0
        self._text = text
        self._flags = flags
        self._single: dict[int, re.Pattern[str]] = {}

    def ends(self, parts: list[Any], at: int) -> Iterator[int]:
        """Where a match of all the parts from `at` on may end, the preferred one first."""
        if not parts:
            yield at
            return
        for middle in self._part(parts[0], at):
            yield from self.ends(parts[1:], middle)

    def _part(self, part: Any, at: int) -> Iterator[int]:
        op, value = part
        self.count += 1
        if op in (ops.LITERAL, ops.NOT_LITERAL, ops.IN, ops.ANY):
            if at < len(self._text) and self._is_one(part, self._text[at]):
                yield at + 1
        elif op is ops.AT:
            if self._is_place(value, at):
                yield at
        elif op is ops.BRANCH:
            for branch in value[1]:
                yield from self.ends(list(branch), at)
        elif op is ops.SUBPATTERN:
            yield from self.ends(list(value[3]), at)
        elif op in (ops.ASSERT, ops.ASSERT_NOT):
            inner = list(value[1])
            start = at if value[0] > 0 else at - value[1].getwidth()[0]
            found = start >= 0 and next(self.ends(inner, start), None) is not None
            if found == (op is ops.ASSERT):
                yield at
        elif op in (ops.MAX_REPEAT, ops.POSSESSIVE_REPEAT):
            least, most, inner = value
            found_ends = self._repeats(list(inner), at, least, most)
            if op is ops.POSSESSIVE_REPEAT:
                yield from (end for end in [next(found_ends, None)] if end is not None)
            else:
                yield from found_ends
        else:
            raise NotImplementedError(op)

    def _repeats(self, inner: list[Any], at: int, least: int, most: int) -> Iterator[int]:
        """Without recursion: a text is longer than Python's stack is deep."""
        ways, ends = [self.ends(inner, at)], [at]
        while ways:
            end = next(ways[-1], None) if len(ways) <= most else None
            if end is not None and end > ends[-1]:
                ends.append(end)
                ways.append(self.ends(inner, end))
                continue
            ways.pop()
            end = ends.pop()
            if len(ends) >= least:
                yield end

    def _is_one(self, part: Any, character: str) -> bool:
        one = self._single.get(id(part))
        if one is None:
            state = parser.State()
            state.flags = self._flags
            one = self._single[id(part)] = re._compiler.compile(parser.SubPattern(state, [part]), self._flags)  # type: ignore[attr-defined]
        return one.match(character) is not None

    def _is_place(self, place: Any, at: int) -> bool:
        before, behind = self._text[at - 1 : at] if at else "", self._text[at : at + 1]
        if place is ops.AT_BEGINNING:
            return not before or (bool(self._flags & re.MULTILINE) and before == "\n")
        if place is ops.AT_END:
            return not behind or (bool(self._flags & re.MULTILINE) and behind == "\n")
        if place in (ops.AT_BOUNDARY, ops.AT_NON_BOUNDARY):
            is_boundary = bool(re.match(r"\w", before)) != bool(re.match(r"\w", behind))
            return is_boundary == (place is ops.AT_BOUNDARY)
        raise NotImplementedError(place)
