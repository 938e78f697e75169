"""Results that were too long for one answer, kept whole for a while, so that whoever got the beginning can go on.

1. A cursor names a result, a place in it and where to go on from there. The name of the result is random, and only its
   owner's cursors lead to it; for everybody else they lead nowhere, as expired ones do. Where several processes serve
   the same clients, it begins with a mark of the process that keeps the result.
2. A result is kept as JSON text. A cursor into a list says at which character its next item begins, so that reading a
   part costs what the part holds, however long the whole is.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.access.callers import Caller
from dragoman.errors import NotFound

ArtifactKind: TypeAlias = Literal["list", "string", "json"]
"""What is read part by part: a list, a string, or anything at all as its JSON text."""

CURSOR_PATTERN = r"^[A-Za-z0-9_-]{22}\.[0-9]{1,4}\.[0-9]{1,15}(\.[0-9]{1,15})?$"
_CURSOR = re.compile(CURSOR_PATTERN)
MARK_LENGTH = 8
_ENTRY = 512  # What an entry weighs besides its texts, roughly,
_PLACE = 160  # and one of its places.

_read_item = json.JSONDecoder().raw_decode
_Trie: TypeAlias = dict[str | int, Any]


class Place(Struct, frozen=True):
    """Where in a result something can be continued: the keys and indices that lead there."""

    kind: ArtifactKind
    path: tuple[str | int, ...] = ()


WHOLE = Place("json")


class ArtifactSource(Struct, frozen=True):
    """The list or text at a place in a result, and how many items or characters it has."""

    kind: ArtifactKind
    text: str
    total: int


class Artifact(Struct, frozen=True):
    """A whole result, and whose it is."""

    owner: str
    sources: tuple[ArtifactSource, ...]


class Position(Struct, frozen=True):
    """Where a cursor leads: what is there, and how much of it has been read."""

    source: ArtifactSource
    offset: int
    _place: str
    _at: int = 0

    def items(self) -> Iterator[tuple[Any, str]]:
        """The items of a list from here on, each with the cursor that leads behind it."""
        source, at = self.source, self._at
        for number in range(self.offset + 1, source.total + 1):
            item, end = _read_item(source.text, at)
            at = end + 1  # After the comma.
            yield item, f"{self._place}.{number}.{at}"

    def cursor_at(self, offset: int) -> str:
        """The cursor to go on with in the same text."""
        return f"{self._place}.{offset}"


def random_token(mark: str = "") -> str:
    """22 characters: 128 bits, or 84 and a mark. Not to be guessed."""
    return mark + secrets.token_urlsafe(16)[len(mark) :]


class Kept(Protocol):
    """What a store has found."""

    @property
    def value(self) -> Artifact | None: ...


class Store(Protocol):
    """Where artifacts are kept until there is no room for them: a bounded cache."""

    def get(self, key: str) -> Kept: ...
    def set(self, key: str, value: Artifact, *, size_bytes: int) -> bool: ...


class Artifacts:
    """Keeps results in a bounded cache, and finds them again by cursor."""

    def __init__(self, cache: Store, new_token: Callable[[], str] = random_token) -> None:
        self._cache = cache
        self._new_token = new_token

    def keep(self, caller: Caller, value: Any, places: Sequence[tuple[Place, int]]) -> list[str] | None:
        """The cursors of these places and offsets in a result of JSON's own types; None when it cannot be kept."""
        token = self._new_token()
        whole = msgspec.json.encode(value).decode()
        starts = _starts(value, [place.path for place, _ in places if place.kind == "list"])
        sources: list[ArtifactSource] = []
        cursors: list[str] = []
        size = _ENTRY + sys.getsizeof(whole)
        for number, (place, offset) in enumerate(places):
            found = whole if place.kind == "json" else _value_at(value, place.path)
            cursor = f"{token}.{number}.{offset}"
            if place.kind == "list":
                sources.append(ArtifactSource("list", whole, len(found)))
                cursor += f".{starts[place.path] + (_length(found[:offset]) if offset else 1)}"
            else:
                sources.append(ArtifactSource(place.kind, found, len(found)))
                size += 0 if found is whole else sys.getsizeof(found)
            size += _PLACE
            cursors.append(cursor)
        if not self._cache.set(_key(token), Artifact(caller.principal, tuple(sources)), size_bytes=size):
            return None
        return cursors

    def find(self, caller: Caller, cursor: str) -> Position:
        """Where a cursor leads; raises `NotFound`, whatever the reason, in the same words."""
        if _CURSOR.fullmatch(cursor):
            token, number, offset, *at = cursor.split(".")
            artifact = self._cache.get(_key(token)).value
            if artifact is not None and artifact.owner == caller.principal and int(number) < len(artifact.sources):
                source = artifact.sources[int(number)]
                if int(offset) <= source.total and bool(at) is (source.kind == "list"):
                    return Position(source, int(offset), f"{token}.{number}", *map(int, at))
        raise NotFound(NOTHING_THERE)


NOTHING_THERE = "There is nothing to continue at this cursor, or no longer"


def _key(token: str) -> str:
    return f"artifact:{token}"


def _value_at(value: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        value = value[step]
    return value


def _starts(value: Any, paths: Sequence[tuple[str | int, ...]]) -> dict[tuple[str | int, ...], int]:
    """At which character of the value's JSON text the value at each path begins. Nothing here recurses."""
    root: _Trie = {}
    for path in paths:
        node = root
        for step in path:
            node = node.setdefault(step, {})
    found: dict[tuple[str | int, ...], int] = {}
    pending: list[tuple[Any, _Trie, tuple[str | int, ...], int]] = [(value, root, (), 0)]
    while pending:
        container, node, path, start = pending.pop()
        found[path] = start
        if node:
            for step, at in _members(container, node, start):
                pending.append((container[step], node[step], (*path, step), at))
    return found


def _members(container: Any, wanted: Mapping[str | int, Any], start: int) -> Iterator[tuple[str | int, int]]:
    """At which character each wanted member of a container begins that begins at `start`."""
    is_list = type(container) is list
    steps: Any = range(len(container)) if is_list else container
    numbers = [number for number, step in enumerate(steps) if step in wanted]
    at, passed = start + 1, 0
    for number in numbers:
        if number > passed:
            between: Any = container[passed:number] if is_list else dict(islice(container.items(), passed, number))
            at += _length(between) - 1  # Without the brackets, and with a comma.
        step: str | int = number if is_list else next(islice(container, number, None))
        at += 0 if is_list else _length(step) + 1
        yield step, at
        if number != numbers[-1]:
            at += _length(container[step]) + 1
        passed = number + 1


def _length(value: Any) -> int:
    """How many characters the value's JSON has."""
    return len(msgspec.json.encode(value).decode())
