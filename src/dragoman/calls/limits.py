"""What arguments may look like. Every element counts, exactly at a limit passes, and each violation says where it is.

The arguments are encoded anyway, to be weighed. Most of the time the bytes alone show that nothing in them can be too
long, too many or too deep; only when they do not is every element looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from dragoman.config import LimitsConfig, ToolsConfig
from dragoman.errors import InvalidArgument
from dragoman.tools.schema import Schema, json_pointer

Path: TypeAlias = tuple[str | int, ...]

ARRAY_TOO_LARGE = "ARRAY_TOO_LARGE"
OBJECT_TOO_LARGE = "OBJECT_TOO_LARGE"
STRING_TOO_LONG = "STRING_TOO_LONG"
TOO_DEEP = "TOO_DEEP"
MOST_VIOLATIONS = 20
"""More of a kind are not listed: the answer must not grow with what was wrong."""


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
    max_object_members: int | None
    overridden: frozenset[str] = frozenset()
    """Which of them somebody set for this tool: these win over what its schema says."""
    sure_bytes: int = 0
    """So few bytes cannot hold anything that is beyond a limit."""

    def __post_init__(self) -> None:
        # n items take 2n + 1 bytes, n members more, n characters n + 2, n levels 2n.
        items = [most for most in (self.max_array_size, self.max_object_members) if most is not None]
        least = [2 * most + 2 for most in items]
        if self.max_string_length is not None:
            least.append(self.max_string_length + 2)
        if self.max_object_depth is not None:
            least.append(2 * self.max_object_depth + 1)
        msgspec.structs.force_setattr(self, "sure_bytes", min(least, default=sys.maxsize))

    def surely_fit(self, encoded: bytes) -> bool:
        """Whether the bytes show that no element can be beyond a limit. False says nothing."""
        array, string, depth = self.max_array_size, self.max_string_length, self.max_object_depth
        members, commas = self.max_object_members, encoded.count(b",")  # As many as items or members, less one.
        return (
            (array is None or commas < array)
            and (members is None or commas < members)
            and (string is None or len(encoded) - 2 <= string)
            and (depth is None or encoded.count(b"{") + encoded.count(b"[") <= depth)
        )

    def violations(self, arguments: Mapping[str, Any], schema: Schema | None = None) -> list[Violation]:
        """Every element beyond a limit; a `maxItems` or `maxLength` of the schema replaces the general one."""
        found: dict[str, list[Violation]] = {}
        for violation in self._look_at(arguments, schema):
            of_its_kind = found.setdefault(violation.code, [])
            if len(of_its_kind) < MOST_VIOLATIONS:
                of_its_kind.append(violation)
        return [violation for of_a_kind in found.values() for violation in of_a_kind]

    def _look_at(self, arguments: Mapping[str, Any], schema: Schema | None) -> Iterator[Violation]:
        # Not recursive: what is nested too deeply for the limit may be so for Python too.
        most_items = sys.maxsize if self.max_array_size is None else self.max_array_size
        most_characters = sys.maxsize if self.max_string_length is None else self.max_string_length
        most_members = sys.maxsize if self.max_object_members is None else self.max_object_members
        deepest = sys.maxsize if self.max_object_depth is None else self.max_object_depth
        containers: list[tuple[Any, Path]] = [(arguments, ())]
        while containers:
            value, path = containers.pop()
            if len(path) >= deepest:
                yield _violation(path, TOO_DEEP, "is nested too deeply", deepest, len(path) + 1)
                continue
            if isinstance(value, dict):
                items: Iterable[tuple[str | int, Any]] = value.items()
                if len(value) > most_members:
                    yield _violation(path, OBJECT_TOO_LARGE, f"has {len(value)} members", most_members, len(value))
                for key in value:
                    if isinstance(key, str) and len(key) > most_characters:
                        said = f"has a key of {len(key)} characters"
                        yield _violation(path, STRING_TOO_LONG, said, most_characters, len(key))
            else:
                items = enumerate(value)
                if len(value) > most_items:
                    limit = self._limit("max_array_size", "maxItems", schema, path)
                    if len(value) > limit:
                        yield _violation(path, ARRAY_TOO_LARGE, f"has {len(value)} items", limit, len(value))
            for step, item in items:
                if isinstance(item, str):
                    if len(item) > most_characters:
                        limit = self._limit("max_string_length", "maxLength", schema, (*path, step))
                        if len(item) > limit:
                            said = f"has {len(item)} characters"
                            yield _violation((*path, step), STRING_TOO_LONG, said, limit, len(item))
                elif isinstance(item, dict | list | tuple):
                    containers.append((item, (*path, step)))

    def _limit(self, name: str, keyword: str, schema: Schema | None, path: Path) -> int:
        """The limit of an element that is beyond the general one."""
        general: int = getattr(self, name)
        if schema is None or name in self.overridden:
            return general
        return max(general, _explicit(schema, keyword, path) or 0)


def _violation(path: Path, code: str, said: str, limit: int, actual: int) -> Violation:
    return Violation(json_pointer(path)[:500], code, f"{said}, and at most {limit} are allowed", limit, actual)


def _explicit(schema: Schema, keyword: str, path: Path) -> int | None:
    """What the schema itself says about the element at `path`: the most generous of the branches that could apply."""
    branches = _branches(schema, schema)
    for step in path:
        children = [child for parent in branches.values() for child in _children(parent, step)]
        branches = {key: branch for child in children for key, branch in _branches(schema, child).items()}
    said = [branch[keyword] for branch in branches.values() if isinstance(branch.get(keyword), int)]
    return max(said) if said else None


def _children(schema: Mapping[str, Any], step: str | int) -> Iterator[Any]:
    if isinstance(step, str):
        named = schema.get("properties", {}).get(step)
        yield named if named is not None else schema.get("additionalProperties")
        yield from schema.get("patternProperties", {}).values()  # Not matched: a client could make that take long.
    else:
        first = schema.get("prefixItems", schema.get("items"))
        if isinstance(first, list):
            yield first[step] if step < len(first) else schema.get("items", schema.get("additionalItems"))
        else:
            yield schema.get("items")


def _branches(root: Schema, schema: Any) -> dict[int, Mapping[str, Any]]:
    """A schema with its references and alternatives, each of them once, however often they refer to each other."""
    found: dict[int, Mapping[str, Any]] = {}
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, Mapping) or id(one) in found:
            continue
        found[id(one)] = one
        reference = one.get("$ref")
        if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
            target: Any = root
            for name in unquote(reference).split("/")[1:]:
                target = target.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
            waiting.append(target)
        for keyword in ("anyOf", "oneOf", "allOf"):
            waiting += one.get(keyword) or ()
        waiting += (one.get("then"), one.get("else"))
    return found


def limits_by_tool(limits: LimitsConfig, tools: ToolsConfig) -> tuple[Limits, dict[str, Limits]]:
    """The limits for all tools, and those of the tools that have some of their own."""
    general = Limits(
        max_payload_bytes=tools.max_payload_bytes,
        max_array_size=limits.max_array_size,
        max_string_length=limits.max_string_length,
        max_object_depth=limits.max_object_depth,
        max_object_members=limits.max_object_members,
    )
    special: dict[str, Limits] = {}
    for name in (*limits.tool_array_limits, *limits.tools):
        own: dict[str, int] = {}
        if name in limits.tool_array_limits:
            own["max_array_size"] = limits.tool_array_limits[name]
        if name in limits.tools:
            settings = limits.tools[name]
            fields = ("max_payload_bytes", *(name for name in Limits.__struct_fields__ if name.startswith("max_")))
            own |= {field: value for field in fields if (value := getattr(settings, field)) is not None}
        if own:
            special[name] = msgspec.structs.replace(general, **own, overridden=frozenset(own))
    return general, special
