"""What arguments may look like. Every element counts, exactly at a limit passes, and each violation says where it is.

The arguments are encoded anyway, to be weighed. Most of the time the bytes alone show that nothing in them can be too
long, too many or too deep; only when they do not is every element looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.config import LimitsConfig, ToolsConfig
from dragoman.errors import InvalidArgument
from dragoman.tools.schema import Schema

Path: TypeAlias = tuple[str | int, ...]

ARRAY_TOO_LARGE = "ARRAY_TOO_LARGE"
STRING_TOO_LONG = "STRING_TOO_LONG"
TOO_DEEP = "TOO_DEEP"
MOST_VIOLATIONS = 20
"""More are not listed: the answer must not grow with what was wrong."""


_encode = msgspec.json.Encoder().encode


def encode_arguments(arguments: Any) -> bytes:
    """The arguments as JSON; raises `InvalidArgument` when they have no such form."""
    try:
        return _encode(arguments)
    except (TypeError, ValueError, RecursionError, OverflowError):
        raise InvalidArgument("Arguments cannot be serialised", {"reason": "arguments_not_serializable"}) from None


class Violation(Struct, frozen=True):
    """One element that is beyond a limit."""

    path: str
    code: str
    message: str
    limit: int
    actual: int


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of one tool, or of all that have none of their own; None: no limit."""

    max_payload_bytes: int
    max_array_size: int | None
    max_string_length: int | None
    max_object_depth: int | None
    overridden: frozenset[str] = frozenset()
    """Which of them somebody set for this tool: these win over what its schema says."""
    sure_bytes: int = 0
    """So few bytes cannot hold anything that is beyond a limit."""

    def __post_init__(self) -> None:
        # n items take 2n + 1 bytes, n characters n + 2, n levels 2n; one more than allowed takes more than these.
        array, string, depth = self.max_array_size, self.max_string_length, self.max_object_depth
        least = [
            *([2 * array + 2] if array is not None else []),
            *([string + 2] if string is not None else []),
            *([2 * depth + 1] if depth is not None else []),
        ]
        msgspec.structs.force_setattr(self, "sure_bytes", min(least, default=sys.maxsize))

    def surely_fit(self, encoded: bytes) -> bool:
        """Whether the bytes show that no element can be beyond a limit. False says nothing."""
        array, string, depth = self.max_array_size, self.max_string_length, self.max_object_depth
        return (
            (array is None or encoded.count(b",") < array)  # As many commas as items, less one.
            and (string is None or len(encoded) - 2 <= string)
            and (depth is None or encoded.count(b"{") + encoded.count(b"[") <= depth)
        )

    def violations(self, arguments: Mapping[str, Any], schema: Schema | None = None) -> list[Violation]:
        """Every element beyond a limit; a `maxItems` or `maxLength` of the schema replaces the general one."""
        found: list[Violation] = []
        for violation in self._look_at(arguments, schema):
            found.append(violation)
            if len(found) == MOST_VIOLATIONS:
                break
        return found

    def _look_at(self, arguments: Mapping[str, Any], schema: Schema | None) -> Iterator[Violation]:
        # Not recursive: what is nested too deeply for the limit may be so for Python too.
        containers: list[tuple[Any, Path]] = [(arguments, ())]
        while containers:
            value, path = containers.pop()
            if self.max_object_depth is not None and len(path) >= self.max_object_depth:
                yield _violation(path, TOO_DEEP, "is nested too deeply", self.max_object_depth, len(path) + 1)
                continue
            if isinstance(value, dict):
                items: Iterable[tuple[str | int, Any]] = value.items()
                for key in value:
                    yield from self._look_at_string(key, path, "has a key of", None)
            else:
                limit = self._limit("max_array_size", "maxItems", schema, path)
                if limit is not None and len(value) > limit:
                    yield _violation(path, ARRAY_TOO_LARGE, f"has {len(value)} items", limit, len(value))
                    continue
                items = enumerate(value)
            for step, item in items:
                if isinstance(item, dict | list | tuple):
                    containers.append((item, (*path, step)))
                else:
                    yield from self._look_at_string(item, (*path, step), "has", schema)

    def _look_at_string(self, value: Any, path: Path, said: str, schema: Schema | None) -> Iterator[Violation]:
        if isinstance(value, str) and self.max_string_length is not None and len(value) > self.max_string_length:
            limit = self._limit("max_string_length", "maxLength", schema, path)
            if limit is not None and len(value) > limit:
                yield _violation(path, STRING_TOO_LONG, f"{said} {len(value)} characters", limit, len(value))

    def _limit(self, name: str, keyword: str, schema: Schema | None, path: Path) -> int | None:
        general: int | None = getattr(self, name)
        if schema is None or name in self.overridden:
            return general
        explicit = _explicit(schema, keyword, path)
        return general if explicit is None else explicit


def _violation(path: Path, code: str, said: str, limit: int, actual: int) -> Violation:
    pointer = "".join(f"/{step}" for step in path)[:500]
    return Violation(pointer, code, f"{said}, and at most {limit} are allowed", limit, actual)


def _explicit(schema: Schema, keyword: str, path: Path) -> int | None:
    """What the schema itself says about the element at `path`: the most generous of the branches that could apply."""
    branches = _branches(schema, schema)
    for step in path:
        branches = [
            branch for parent in branches for child in _children(parent, step) for branch in _branches(schema, child)
        ]
    said = [branch[keyword] for branch in branches if isinstance(branch.get(keyword), int)]
    return max(said) if said else None


def _children(schema: Mapping[str, Any], step: str | int) -> Iterator[Any]:
    if isinstance(step, str):
        named = schema.get("properties", {}).get(step)
        yield named if named is not None else schema.get("additionalProperties")
    else:
        first = schema.get("prefixItems", schema.get("items"))
        if isinstance(first, list):
            yield first[step] if step < len(first) else schema.get("items", schema.get("additionalItems"))
        else:
            yield schema.get("items")


def _branches(root: Schema, schema: Any, depth: int = 0) -> list[Mapping[str, Any]]:
    """A schema with its references and alternatives."""
    if not isinstance(schema, Mapping) or depth > 8:
        return []
    found = [schema]
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for name in reference[2:].split("/"):
            target = target.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        found += _branches(root, target, depth + 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        for branch in schema.get(keyword) or ():
            found += _branches(root, branch, depth + 1)
    return found


def limits_by_tool(limits: LimitsConfig, tools: ToolsConfig) -> tuple[Limits, dict[str, Limits]]:
    """The limits for all tools, and those of the tools that have some of their own."""
    general = Limits(
        max_payload_bytes=tools.max_payload_bytes,
        max_array_size=limits.max_array_size,
        max_string_length=limits.max_string_length,
        max_object_depth=limits.max_object_depth,
    )
    special: dict[str, Limits] = {}
    for name in (*limits.tool_array_limits, *limits.tools):
        own: dict[str, int] = {}
        if name in limits.tool_array_limits:
            own["max_array_size"] = limits.tool_array_limits[name]
        if name in limits.tools:
            settings = limits.tools[name]
            fields = ("max_payload_bytes", "max_array_size", "max_string_length", "max_object_depth")
            own |= {field: value for field in fields if (value := getattr(settings, field)) is not None}
        if own:
            special[name] = msgspec.structs.replace(general, **own, overridden=frozenset(own))
    return general, special
