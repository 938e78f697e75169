"""What a function's return hint says about the results of its tool.

1. An object (a TypedDict, a dataclass, a Struct, a model, `dict[str, X]`) is the structured content as it is. Every
   other type is `{"result": value}` there, and the output schema says so.
2. A string is sent as text without quotes, if the hint names `str`, a subclass of it, or a `Literal` of strings.
3. No hint, `Any`, `object`, content blocks, and types that have no JSON Schema: no output schema, and JSON text.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from math import isfinite
from typing import Annotated, Any, Literal

from msgspec import Raw, Struct

from dragoman.schemas.conversion import json_schema, with_meta
from dragoman.schemas.schema import DRAFT_2020_12

_Schema = dict[str, Any]
_ATOMS: dict[Any, set[type]] = {str: {str}, int: {int}, float: {float, int}, bool: {bool}, type(None): {type(None)}}
_ANY = (Any, object)


WRAPPED: Any = b'{"result":%b}'
"""The structured content of a result that is no object, in which `%` puts its JSON."""


class Returns(Struct, frozen=True):
    """How a result becomes text and structured content."""

    is_text: bool = False
    """Whether a string is sent as it is, and not as JSON."""
    is_wrapped: bool = False
    """Whether the structured content is `{"result": value}`."""
    exact: frozenset[type] = frozenset()
    """Values of exactly these types fit the output schema, but for floats that are no JSON numbers."""

    def fits(self, value: Any) -> bool:
        """Whether the type of the value alone says that it fits the output schema."""
        kind = type(value)
        return kind in self.exact and (kind is not float or isfinite(value))

    def content(self, value: Any) -> Any:
        """The structured content for a value."""
        return {"result": value} if self.is_wrapped else value

    def encoded_content(self, encoded: bytes | bytearray) -> Raw:
        """The structured content for a value that is JSON already."""
        return Raw(WRAPPED % encoded if self.is_wrapped else encoded)


AS_JSON = Returns()
"""For tools that were registered with schemas of their own."""


def read_return(hint: Any, is_content: Callable[[type], bool]) -> tuple[_Schema | None, Returns]:
    """The output schema of a return hint, or None if there is none, and how results are answered with.

    `is_content` tells whether values of a type are content blocks.
    """
    if hint is None:
        return None, AS_JSON
    returns = Returns(_names_text(hint), exact=frozenset(_exact(hint)))
    try:
        if _is_free(hint, is_content):
            return None, Returns(returns.is_text)
        schema, definitions = json_schema(with_meta(hint), "serialization")
    except (TypeError, ValueError, NameError, KeyError, RuntimeError):
        return None, Returns(returns.is_text)  # A result may have no schema; its JSON form shows when it is sent.
    if schema.get("type") == "object":
        schema.pop("title", None)
    else:
        returns = Returns(returns.is_text, True, returns.exact)
        schema = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    if definitions:
        schema["$defs"] = definitions
    return {"$schema": DRAFT_2020_12, **schema}, returns


def plain_hint(hint: Any) -> Any:
    """The type that an `Annotated`, a `NewType` or an alias stands for."""
    while (inner := _inner(hint)) is not hint:
        hint = inner
    return hint


def _inner(hint: Any) -> Any:
    if typing.get_origin(hint) is Annotated:
        return typing.get_args(hint)[0]
    if isinstance(hint, typing.NewType):
        return hint.__supertype__
    return hint.__value__ if type(hint).__name__ == "TypeAliasType" else hint


def _members(hint: Any) -> tuple[Any, ...]:
    """The types of a union; any other type alone."""
    hint = plain_hint(hint)
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return (hint,)
    return tuple(member for each in typing.get_args(hint) for member in _members(each))


def _is_free(hint: Any, is_content: Callable[[type], bool]) -> bool:
    """Whether nothing is said about the result, or some of it may be content blocks, which are sent as they are."""
    return any(member in _ANY or _has_content(member, is_content) for member in _members(hint))


def _has_content(hint: Any, is_content: Callable[[type], bool]) -> bool:
    hint = plain_hint(hint)
    if isinstance(hint, type) and is_content(hint):
        return True
    return any(_has_content(part, is_content) for part in typing.get_args(hint))


def _names_text(hint: Any) -> bool:
    for member in _members(hint):
        if typing.get_origin(member) is Literal:
            if any(isinstance(value, str) for value in typing.get_args(member)):
                return True
        elif member is typing.LiteralString or (isinstance(member, type) and issubclass(member, str)):
            return True
    return False


def _exact(hint: Any) -> set[type]:
    if typing.get_origin(hint) is Annotated and not all(isinstance(each, str) for each in typing.get_args(hint)[1:]):
        return set()
    if (inner := _inner(hint)) is not hint:
        return _exact(inner)
    found: set[type] = set()
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            found |= _exact(member)
    elif hint in (dict, dict[str, Any], list, list[Any]):
        found.add(typing.get_origin(hint) or hint)
    elif isinstance(hint, type):
        found |= _ATOMS.get(hint, set())
    return found
