"""Makes a JSON value shorter, so that what is left is still JSON of the same shape.

1. A string that is longer than it may be ends with the suffix, which counts towards its length. A list that is longer
   than it may be keeps its first items, whole.
2. What is still too heavy loses items of its outermost lists, so that those that stay are whole. If that is not enough,
   all its strings lose characters; if that is not enough either, inner lists lose items too.
3. Objects keep all their keys. What is too heavy even so cannot be made shorter.
4. The same value always gives the same cuts, the outermost first.

Nothing here recurses: a value may be nested as deeply as JSON can be read.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

MOST_CUTS = 20
"""How many cuts are told one by one."""

CutKind: TypeAlias = Literal["list", "string"]
_Link: TypeAlias = tuple[Any, str | int] | None
_ANY = sys.maxsize
_ATOMS = frozenset({type(None), bool, int, float})


class Caps(Struct, frozen=True):
    """The most items of a list that is not within another one, of any other list, and characters of a string."""

    outer: int = _ANY
    inner: int = _ANY
    string: int = _ANY


class Cut(Struct, frozen=True):
    """Where something was cut, how long it was, and how much of it was kept, without the suffix."""

    kind: CutKind
    total: int
    kept: int
    _link: _Link

    @property
    def path(self) -> tuple[str | int, ...]:
        """The keys and indices that lead there."""
        steps: list[str | int] = []
        link = self._link
        while link is not None:
            link, step = link
            steps.append(step)
        return tuple(steps[-2::-1])  # The last one leads to the root.


class Shortened(Struct):
    """A copy with nothing in it that is longer than its cap, and the longest that is in it."""

    value: Any
    cuts: list[Cut]
    longest: Caps
    is_told: bool = True
    """Whether `cuts` holds all of them."""


def shorten(value: Any, caps: Caps, suffix: str, most_bytes: int = _ANY) -> Shortened | None:
    """Cut what is longer than its cap; None as soon as it is clear that what is left takes more than `most_bytes`."""
    root = [value]
    cuts: list[Cut] = []
    is_told = True
    taken = longest_outer = longest_inner = longest_string = 0
    string_cap = caps.string
    kept_of_string = max(0, string_cap - len(suffix))
    cut_suffix = suffix[:string_cap]
    pending: deque[tuple[Any, _Link, bool]] = deque([(root, None, False)])
    while pending and taken <= most_bytes:
        container, link, is_inner = pending.popleft()
        entries: Iterator[tuple[Any, Any]] = enumerate(container) if type(container) is list else container.items()
        for key, child in entries:
            kind = type(child)
            if kind is str:
                if len(child) <= string_cap:
                    taken += len(child)
                    if len(child) > longest_string:
                        longest_string = len(child)
                    continue
                taken += string_cap
                longest_string = string_cap
                container[key] = child[:kept_of_string] + cut_suffix
                cut = Cut("string", len(child), kept_of_string, (link, key))
            elif kind is list:
                cap = caps.inner if is_inner else caps.outer
                container[key] = kept = child[:cap]
                taken += 2 * len(kept)
                if is_inner:
                    longest_inner = max(longest_inner, len(kept))
                else:
                    longest_outer = max(longest_outer, len(kept))
                if not _ATOMS.issuperset(map(type, kept)):
                    pending.append((kept, (link, key), True))
                if len(child) <= cap:
                    continue
                cut = Cut("list", len(child), cap, (link, key))
            elif kind is dict:
                container[key] = copy = child.copy()
                taken += 2 * len(copy)
                pending.append((copy, (link, key), is_inner))
                continue
            else:
                continue
            if len(cuts) < MOST_CUTS:
                cuts.append(cut)
            else:
                is_told = False
    if taken > most_bytes:
        return None
    return Shortened(root[0], cuts, Caps(longest_outer, longest_inner, longest_string), is_told)


class Fitted(Struct, frozen=True):
    """A value that was cut until it was light enough."""

    encoded: bytes
    cuts: list[Cut]
    is_told: bool


class Bounds(Struct, frozen=True):
    """What a value is cut to: its lists, its strings, and then all of it until `weigh` gives at most `room`."""

    list_items: int
    string_length: int
    suffix: str
    room: int
    weigh: Callable[[bytes], int]
    """What the encoded value weighs where it is going; never less than its length."""


def fit(value: Any, limits: Bounds, accepts: Callable[[Any], bool] | None = None) -> Fitted | None:
    """The value, cut so that it is within all limits; None when there is no such form.

    With `accepts`, only a form that it accepts will do. Lists or strings may then stay longer than the limits, if that
    is what it takes; never heavier.
    """
    for lists, strings in ((True, True), (True, False), (False, True)) if accepts else ((True, True),):
        for found, shortened in _forms(value, limits, lists, strings):
            if found.cuts and (accepts is None or accepts(shortened)):
                return found
    return None


def _forms(value: Any, limits: Bounds, lists: bool, strings: bool) -> Iterator[tuple[Fitted, Any]]:
    """Forms that are light enough, with lists or strings or both of them cut; the best first."""
    items = limits.list_items if lists else _ANY
    caps = Caps(items, items, limits.string_length if strings else _ANY)
    shortened = shorten(value, caps, limits.suffix)
    assert shortened is not None
    encoded = msgspec.json.encode(shortened.value)
    if limits.weigh(encoded) <= limits.room:
        yield Fitted(encoded, shortened.cuts, shortened.is_told), shortened.value
        return
    longest = shortened.longest
    shortest = min(len(limits.suffix), longest.string)  # Fewer characters than the suffix has would say nothing.
    if lists:
        yield from _largest(value, limits, 1, longest.outer, lambda most: Caps(most, caps.inner, caps.string))
    if strings:
        yield from _largest(value, limits, shortest, longest.string, lambda most: Caps(caps.outer, caps.inner, most))
    if lists:
        parts = max(longest.outer, longest.inner, longest.string if strings else 1)

        def caps_at(part: int) -> Caps:
            string = shortest + (longest.string - shortest) * part // parts if strings else _ANY
            return Caps(max(1, longest.outer * part // parts), longest.inner * part // parts, string)

        yield from _largest(value, limits, 0, parts, caps_at)


def _largest(
    value: Any, limits: Bounds, least: int, most: int, caps_at: Callable[[int], Caps]
) -> Iterator[tuple[Fitted, Any]]:
    """The form under the largest number, within a sixteenth, whose caps make it light enough; nothing if none does."""
    if most <= least:
        return
    best = _light(value, caps_at(least), limits)
    while best is not None and most - least > max(1, most >> 4):
        middle = (least + most) // 2
        found = _light(value, caps_at(middle), limits)
        if found is None:
            most = middle
        else:
            least, best = middle, found
    if best is not None:
        yield best


def _light(value: Any, caps: Caps, limits: Bounds) -> tuple[Fitted, Any] | None:
    shortened = shorten(value, caps, limits.suffix, limits.room)
    if shortened is None:
        return None
    encoded = msgspec.json.encode(shortened.value)
    if limits.weigh(encoded) > limits.room:
        return None
    return Fitted(encoded, shortened.cuts, shortened.is_told), shortened.value
