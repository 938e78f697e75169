"""What the headers of a 2026-07-28 request over HTTP must say about its body.

Whoever routes requests looks at the headers and never at the body, so a request whose headers say something else than
its body is refused: it might have been routed, or let through, as another one.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from msgspec import Struct

from dragoman.errors import HeaderMismatch
from dragoman.protocol.versions import TASK_METHODS

VERSION: Final = b"mcp-protocol-version"
METHOD: Final = b"mcp-method"
NAME: Final = b"mcp-name"
PARAMETER: Final = b"mcp-param-"
_ROUTING = (VERSION, METHOD, NAME)
Routing: TypeAlias = tuple[bytes | None, ...]
"""The values of these, in this order."""
_UNSAID: Routing = (None, None, None)

NAMED_BY: Final[Mapping[str, str]] = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    **dict.fromkeys(sorted(TASK_METHODS), "taskId"),
}
"""The parameter that `Mcp-Name` repeats, by method."""

_BLANK = b" \t"
"""What may surround a header's value without being part of it."""

ANNOTATION: Final = "x-mcp-header"
_LONGEST_REMEMBERED = 256
"""Characters of a name: who asks for it may have made up any number of long ones."""
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_DECIMAL = re.compile(r"(-?[0-9]+)(?:\.(0+))?")
_WRAPPED = re.compile(rb"=\?base64\?(.*)\?=")
_DATA = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose values are data, in which an annotation means nothing."""


class ParameterHeader(Struct, frozen=True):
    """A property that its tool wants repeated in a header."""

    header: bytes
    path: tuple[str, ...]
    kind: str


_CREDENTIALS = frozenset(
    (
        b"authorization",
        b"proxy-authorization",
        b"cookie",
        b"x-api-key",
        b"mcp-session-id",
        b"x-explorer-token",
        b"x-dragoman-worker",
    )
)
"""Headers that say who may do something: whoever knows their values can act for the caller."""


def readable_headers(pairs: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Headers by their names in lower case, without credentials; values of the same name are joined with commas."""
    found = joined((lower, value) for name, value in pairs if (lower := name.lower()) not in _CREDENTIALS)
    return MappingProxyType({name.decode("latin-1"): value.decode("latin-1") for name, value in found.items()})


def by_name(pairs: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name; values of the same name are joined, and there are fewer names than headers then."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else joined(pairs)


def joined(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name; values of the same name are joined, as HTTP has it: with commas, and cookies with semicolons."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: (b"; " if name == b"cookie" else b", ").join(values) for name, values in found.items()}


def routing_in(headers: Mapping[bytes, bytes], pairs: Sequence[tuple[bytes, bytes]]) -> Routing:
    """What the headers say about the body; nothing, where some header is there twice."""
    return (headers.get(VERSION), headers.get(METHOD), headers.get(NAME)) if len(headers) == len(pairs) else _UNSAID


def is_plainly_said(routing: Routing, version: str, method: str, name: str) -> bool:
    """Whether headers say so, in the way that nearly every request does. If not, `check_routing` has to look."""
    return len(name) <= _LONGEST_REMEMBERED and routing == _as_sent(version, method, name)


def check_routing(
    headers: Mapping[bytes, bytes], pairs: Sequence[tuple[bytes, bytes]], version: object, method: str, name: object
) -> None:
    """Raise `HeaderMismatch` unless the headers say what the body does. `name` None: the method has none."""
    if len(headers) != len(pairs):
        _refuse_doubles(pairs, _ROUTING)
    if _text(headers.get(VERSION)) != version:
        raise HeaderMismatch("Header mismatch: MCP-Protocol-Version is not the version in params._meta")
    if _text(headers.get(METHOD)) != method:
        raise HeaderMismatch("Header mismatch: Mcp-Method is not the request's method")
    if NAME not in headers and method in TASK_METHODS:
        return  # There are clients of the tasks extension that send none.
    if name is not None and decode_header(headers.get(NAME)) != name:
        raise HeaderMismatch(f"Header mismatch: Mcp-Name is not params.{NAMED_BY[method]}")


@lru_cache(maxsize=256)
def _as_sent(*said: str) -> tuple[bytes, ...]:
    """The headers of a request that says these, if they need no wrapping; otherwise what no request has."""
    is_plain = all(each.isascii() and each.strip() == each and not each.startswith("=?") for each in said)
    return tuple(each.encode() for each in said) if is_plain else ()


def check_parameters(
    wanted: Iterable[ParameterHeader],
    arguments: Mapping[str, Any],
    headers: Mapping[bytes, bytes],
    pairs: Iterable[tuple[bytes, bytes]],
) -> None:
    """Raise `HeaderMismatch` unless each argument that is to be repeated in a header is, and no other."""
    for each in wanted:
        name = each.header.decode()
        _refuse_doubles(pairs, (each.header,))
        given = headers.get(each.header)
        expected = _rendered(_value_at(arguments, each.path))
        if expected is None:
            if given is not None:
                raise HeaderMismatch(f"Header mismatch: {name} has no argument {'.'.join(each.path)} to repeat")
        elif given is None:
            raise HeaderMismatch(f"Header mismatch: {name} is missing, argument {'.'.join(each.path)} is not")
        elif not _agree(each.kind, decode_header(given), expected):
            raise HeaderMismatch(f"Header mismatch: {name} is not argument {'.'.join(each.path)}")


def parameter_headers(schema: Mapping[str, Any]) -> tuple[ParameterHeader, ...]:
    """The headers that a tool's input schema asks for; none when any of its annotations breaks the rules.

    Clients leave a tool with a bad annotation alone, so there is nobody whose headers could be checked.
    """
    found: dict[bytes, ParameterHeader] = {}
    for path, position in _positions(schema, ()):
        if ANNOTATION not in position:
            continue
        token, kind = position[ANNOTATION], position.get("type")
        if not path or not isinstance(token, str) or not _TOKEN.fullmatch(token):
            return ()
        header = PARAMETER + token.lower().encode()
        if kind not in ("string", "integer", "boolean") or header in found:
            return ()
        found[header] = ParameterHeader(header, path, kind)
    return tuple(found.values())


def decode_header(value: bytes | None) -> str | None:
    """A header's text, unwrapped when it is `=?base64?…?=`; None when it is absent or cannot be read."""
    if value is None:
        return None
    value = value.strip(_BLANK)
    wrapped = _WRAPPED.fullmatch(value)
    if wrapped is None:
        return _text(value)
    try:
        decoded = base64.b64decode(wrapped[1], validate=True)
        return decoded.decode() if base64.b64encode(decoded) == wrapped[1] else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.strip(_BLANK).decode("latin-1")


def _refuse_doubles(pairs: Iterable[tuple[bytes, bytes]], names: tuple[bytes, ...]) -> None:
    seen = [name for name, _ in pairs if name in names]
    if len(seen) != len(set(seen)):
        twice = next(name for name in seen if seen.count(name) > 1)
        raise HeaderMismatch(f"Header mismatch: {twice.decode()} is there more than once")


def _positions(schema: Any, path: tuple[str, ...] | None) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, Any]]]:
    """Every schema within `schema`; with its path where only `properties` lead to it, else with None."""
    stack: list[tuple[tuple[str, ...] | None, Any]] = [(path, schema)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, list):
            stack += [(None, each) for each in node]
        if not isinstance(node, dict):
            continue
        yield path, node
        for keyword, value in node.items():
            if keyword == "properties" and isinstance(value, dict):
                stack += [((*path, key) if path is not None else None, each) for key, each in value.items()]
            elif keyword in ("$defs", "definitions", "patternProperties", "dependentSchemas"):
                stack += [(None, each) for each in (value.values() if isinstance(value, dict) else ())]
            elif keyword not in _DATA:
                stack.append((None, value))


def _value_at(arguments: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        arguments = arguments.get(key) if isinstance(arguments, dict) else None
    return arguments


def _rendered(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, str | int | float) else None


def _agree(kind: str, given: str | None, expected: str) -> bool:
    if given == expected:
        return True
    number = _DECIMAL.fullmatch(given) if given is not None and kind == "integer" else None
    return number is not None and number[1] == expected  # 42.0 is 42, however long it is.
