"""Cursors of the `memory_*` tools: opaque to clients, checked when they come back."""

from __future__ import annotations

import base64
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from dragoman.errors import InvalidArgument

HIGHEST = 2**63 - 1


class ListCursor(Struct, frozen=True, array_like=True, tag="list", forbid_unknown_fields=True):
    """The key after which a page of a list begins, and how many entries came before."""

    offset: Annotated[int, Meta(ge=0, le=HIGHEST)]
    after: str


class SearchCursor(Struct, frozen=True, array_like=True, tag="search", forbid_unknown_fields=True):
    """The number below which a page of matches begins."""

    resume: Annotated[int, Meta(ge=0, le=HIGHEST)]


C = TypeVar("C", ListCursor, SearchCursor)


def write_cursor(cursor: ListCursor | SearchCursor) -> str:
    """The text that clients pass back for `read_cursor`."""
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode()


def read_cursor(cursor: str, kind: type[C]) -> C:
    """Raises `InvalidArgument` for a cursor that this kind of tool did not give out."""
    try:
        return msgspec.json.decode(base64.b64decode(cursor, b"-_", validate=True), type=kind)
    except (msgspec.DecodeError, ValueError):
        raise InvalidArgument(
            "The cursor is not one that this tool gave out; omit it to start from the beginning",
            {"reason": "invalid_cursor"},
        ) from None
