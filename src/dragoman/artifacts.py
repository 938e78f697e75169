"""Results that were too long for one answer, kept whole for a while, so that whoever got the beginning can go on.

A cursor names a result, a place in it and where to go on from there. The name of the result is random, and only its
owner's cursors lead to it; for everybody else they lead nowhere, as expired ones do. Where several processes serve the
same clients, it begins with a mark of the process that keeps the result.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.access.callers import Caller
from dragoman.cache import BoundedCache
from dragoman.errors import NotFound

Kind: TypeAlias = Literal["list", "string", "json"]
"""What is read part by part: a list, a string, or anything at all as its JSON text."""

CURSOR_PATTERN = r"^[A-Za-z0-9_-]{22}\.[0-9]{1,4}\.[0-9]{1,15}$"
_CURSOR = re.compile(CURSOR_PATTERN)
MARK_LENGTH = 8
_ENTRY = 512  # What an entry weighs besides its bytes and its places, roughly.


class Place(Struct, frozen=True):
    """Where in a result something can be continued: the keys and indices that lead there."""

    kind: Kind
    path: tuple[str | int, ...] = ()


WHOLE = Place("json")


class Artifact(Struct, frozen=True):
    """A whole result, and whose it is."""

    owner: str
    encoded: bytes
    places: tuple[Place, ...]


class Position(Struct, frozen=True):
    """Where a cursor leads: what is there, and how much of it has been read."""

    kind: Kind
    value: Any
    offset: int
    _token: str
    _place: int

    def cursor_at(self, offset: int) -> str:
        """The cursor to go on with at the same place."""
        return f"{self._token}.{self._place}.{offset}"


def random_token(mark: str = "") -> str:
    """22 characters: 128 bits, or 84 and a mark. Not to be guessed."""
    return mark + secrets.token_urlsafe(16)[len(mark) :]


class Artifacts:
    """Keeps results in a bounded cache, and finds them again by cursor."""

    def __init__(self, cache: BoundedCache[Artifact], new_token: Callable[[], str] = random_token) -> None:
        self._cache = cache
        self._new_token = new_token

    def keep(self, caller: Caller, encoded: bytes, places: Sequence[tuple[Place, int]]) -> list[str] | None:
        """The cursors of these places and offsets in a result; None when it cannot be kept."""
        token = self._new_token()
        artifact = Artifact(caller.principal, encoded, tuple(place for place, _ in places))
        size = _ENTRY + len(encoded) + sum(8 + len(str(step)) for place, _ in places for step in place.path)
        if not self._cache.set(_key(token), artifact, size_bytes=size):
            return None
        return [f"{token}.{number}.{offset}" for number, (_, offset) in enumerate(places)]

    def find(self, caller: Caller, cursor: str) -> Position:
        """Where a cursor leads; raises `NotFound`, whatever the reason, in the same words."""
        if _CURSOR.fullmatch(cursor):
            token, number, offset = cursor.split(".")
            artifact = self._cache.get(_key(token)).value
            if artifact is not None and artifact.owner == caller.principal and int(number) < len(artifact.places):
                place = artifact.places[int(number)]
                value = _value_at(artifact, place)
                if int(offset) <= len(value):
                    return Position(place.kind, value, int(offset), token, int(number))
        raise NotFound("There is nothing to continue at this cursor, or no longer")


def _key(token: str) -> str:
    return f"artifact:{token}"


def _value_at(artifact: Artifact, place: Place) -> Any:
    if place.kind == "json":
        return artifact.encoded.decode()
    value = msgspec.json.decode(artifact.encoded)
    for step in place.path:
        value = value[step]
    return value
