"""What arguments may look like. Every element counts, exactly at a limit passes, and each violation says where it is.

The limits are a JSON Schema too, and its validator looks at every element faster than code of ours. Most of the time
it sees that nothing is too long, too many or too deep; only when it does not is the violation searched for.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from dragoman.calls.settings import LimitsConfig
from dragoman.errors import InvalidArgument
from dragoman.schemas.findings import json_pointer
from dragoman.schemas.references import target_of
from dragoman.schemas.schema import ANY_OBJECT, DRAFT_2020_12, Schema, Validator, compile_schema
from dragoman.sections import join
from dragoman.tools.settings import ToolsConfig

Branches: TypeAlias = dict[int, Mapping[str, Any]]
"""The parts of a schema that may apply to an element, by their identity."""

ARRAY_TOO_LARGE = "ARRAY_TOO_LARGE"
OBJECT_TOO_LARGE = "OBJECT_TOO_LARGE"
STRING_TOO_LONG = "STRING_TOO_LONG"
TOO_DEEP = "TOO_DEEP"
_SETTINGS = {
    ARRAY_TOO_LARGE: "max_array_size",
    OBJECT_TOO_LARGE: "max_object_members",
    STRING_TOO_LONG: "max_string_length",
    TOO_DEEP: "max_object_depth",
}
MOST_VIOLATIONS = 20
"""More of a kind are counted, not listed: neither the answer nor its cost grows with what was wrong."""
MOST_POINTER = 500
"""Characters of a violation's path."""
_MOST_LEVELS = 32
"""Of the schema: what is nested more deeply is always searched."""
_CONTAINERS = (dict, list, tuple)
_PLAIN = frozenset((str, int, float, bool, type(None)))
_KNOWN = _PLAIN.union(_CONTAINERS)

_encode = msgspec.json.Encoder().encode


def encode_arguments(arguments: Any) -> bytes:
    """The arguments as JSON; raises `InvalidArgument` when they have no such form."""
    try:
        return _encode(arguments)
    except (TypeError, ValueError, RecursionError, OverflowError):
        raise InvalidArgument("Arguments cannot be serialised", {"reason": "arguments_not_serializable"}) from None


class Violation(Struct, frozen=True, omit_defaults=True):
    """One element that is beyond a limit."""

    path: str
    code: str
    message: str
    limit: int
    actual: int
    setting: str | None = None
    """The setting that is the limit; None if the tool's schema is."""


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of one tool, or of all that have none of their own; None: no limit."""

    max_payload_bytes: int
    max_array_size: int | None
    max_string_length: int | None
    max_object_depth: int | None
    max_object_members: int | None
    overridden: Mapping[str, str] = {}
    """The settings for this tool alone, by limit: these win over what its schema says."""
    sure_bytes: int = 0
    """So few bytes cannot hold anything that is beyond a limit."""
    validators: tuple[Validator, Validator] = (ANY_OBJECT, ANY_OBJECT)
    """Of the limits but for the one of strings, and of all of them."""

    def __post_init__(self) -> None:
        # n items take 2n + 1 bytes, n members more, n characters n + 2, n levels 2n.
        items = [most for most in (self.max_array_size, self.max_object_members) if most is not None]
        least = [2 * most + 2 for most in items]
        if self.max_string_length is not None:
            least.append(self.max_string_length + 2)
        if self.max_object_depth is not None:
            least.append(2 * self.max_object_depth + 1)
        force_setattr(self, "sure_bytes", min(least, default=sys.maxsize))
        levels = min(self.max_object_depth or _MOST_LEVELS, _MOST_LEVELS)
        most = (self.max_array_size, self.max_object_members, levels)
        force_setattr(self, "validators", (_validator(*most, None), _validator(*most, self.max_string_length)))

    def surely_fit(self, arguments: Mapping[str, Any], size: int) -> bool:
        """Whether no element is beyond a limit. False says nothing: the tool's schema may allow more.

        `size` is what the arguments weigh as JSON: no string in them can be longer.
        """
        longest = self.max_string_length
        return self.validators[longest is not None and size > longest].allows(arguments)

    def violations(
        self, arguments: Mapping[str, Any], schema: Schema | None = None, size: int = sys.maxsize
    ) -> Violations:
        """Every element beyond a limit; a `maxItems` or `maxLength` of the schema replaces the general one.

        `size` is what the arguments weigh as JSON: no string in them can be longer.
        """
        walk = _Walk(self, schema)
        walk.look_at(arguments, size)
        return walk.found


@cache
def _validator(items: int | None, members: int | None, levels: int, longest: int | None) -> Validator:
    """Allows what has at most so many items, members and levels, and no longer strings; None: any."""
    text: dict[str, Any] = {} if longest is None else {"maxLength": longest, "propertyNames": {"maxLength": longest}}
    most = {"maxItems": items, "maxProperties": members}
    limits = text | {keyword: limit for keyword, limit in most.items() if limit is not None}
    within: list[dict[str, Any]] = [{"$ref": f"#/$defs/{level}"} for level in range(1, levels)]
    within.append({"type": ["boolean", "null", "number", "string"], **text})
    definitions = {
        str(level): {**limits, "items": inner, "additionalProperties": inner} for level, inner in enumerate(within)
    }
    return compile_schema({"$schema": DRAFT_2020_12, "$ref": "#/$defs/0", "$defs": definitions})


class Violations:
    """The elements beyond a limit: the first of each kind in full, and a count of all."""

    def __init__(self) -> None:
        self.listed: list[Violation] = []
        self.counts: dict[str, int] = {}
        """By code."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def count(self, code: str) -> bool:
        """Count a violation; whether it is one of the few of its kind that are listed."""
        count = self.counts[code] = self.counts.get(code, 0) + 1
        return count <= MOST_VIOLATIONS


class _Walk:
    """One look at every element, level by level.

    It costs the same for each element, wherever that is and whatever is wrong with it: a level is a list of containers,
    and the path to one of them is worked out only for the few violations that are listed. Not recursive, since what is
    nested too deeply for the limit may be so for Python too.
    """

    def __init__(self, limits: Limits, schema: Schema | None) -> None:
        self.found = Violations()
        self._limits = limits
        self._schema = schema
        self._levels: list[list[Any]] = []
        self._starts: list[list[int]] = []
        """By level: where, in the next one, the containers within each container begin. Only as far as it is needed."""
        self._steps: dict[tuple[int, int], list[str | int]] = {}
        """The names or numbers of the containers within a container, by its level and place in it. Likewise."""
        self._branches: dict[tuple[int, int], Branches] = {}
        """The parts of the schema that apply to a container, by its level and place in it."""

    def look_at(self, arguments: Mapping[str, Any], size: int) -> None:
        limits = self._limits
        most_items = sys.maxsize if limits.max_array_size is None else limits.max_array_size
        most_members = sys.maxsize if limits.max_object_members is None else limits.max_object_members
        deepest = sys.maxsize if limits.max_object_depth is None else limits.max_object_depth
        longest = sys.maxsize if limits.max_string_length is None else limits.max_string_length
        containers: list[Any] = [arguments]
        kinds: set[type] = {dict}
        while containers:
            self._levels.append(containers)
            if len(self._levels) > deepest:
                for place in range(len(containers)):
                    self._add(place, TOO_DEEP, "is nested too deeply", deepest, deepest + 1)
                return
            if max(map(len, containers)) > min(most_items, most_members):
                self._look_for_many(containers, most_items, most_members)
            values = [each.values() if isinstance(each, dict) else each for each in containers if each]
            items = list(chain.from_iterable(values))
            objects = containers if dict in kinds or kinds - _KNOWN else ()
            kinds = set(map(type, items))
            strings = items if str in kinds or kinds - _KNOWN else ()
            if size > longest and _has_long(objects, strings, longest):
                self._look_for_long(containers, longest)
            containers = [item for item in items if type(item) not in _PLAIN] if kinds - _PLAIN else []
            if kinds - _KNOWN:
                containers = [item for item in containers if isinstance(item, _CONTAINERS)]

    def _look_for_many(self, containers: list[Any], most_items: int, most_members: int) -> None:
        for place, container in enumerate(containers):
            count = len(container)
            if isinstance(container, dict):
                if count > most_members:
                    self._add(place, OBJECT_TOO_LARGE, f"has {count} members", most_members, count)
            elif count > most_items:
                limit = self._limit("max_array_size", "maxItems", self._branches_at(len(self._levels) - 1, place))
                if count > limit:
                    self._add(place, ARRAY_TOO_LARGE, f"has {count} items", limit, count)

    def _look_for_long(self, containers: list[Any], longest: int) -> None:
        for place, container in enumerate(containers):
            for key in container if isinstance(container, dict) else ():
                if isinstance(key, str) and len(key) > longest:
                    self._add(place, STRING_TOO_LONG, f"has a key of {len(key)} characters", longest, len(key))
            for step, item in _items(container):
                if isinstance(item, str) and len(item) > longest:
                    branches = self._branches_at(len(self._levels) - 1, place)
                    limit = self._limit("max_string_length", "maxLength", _within(self._schema, branches, step))
                    if len(item) > limit:
                        self._add(place, STRING_TOO_LONG, f"has {len(item)} characters", limit, len(item), step)

    def _add(self, place: int, code: str, said: str, limit: int, actual: int, *within: str | int) -> None:
        """Note that the container at `place` in the last level, or something within it, is beyond a limit."""
        if self.found.count(code):
            path = (*self._path(len(self._levels) - 1, place), *within)
            setting = self._setting_of(code, limit)
            message = f"{said}, and at most {limit} are allowed ({setting or 'the schema'})"
            self.found.listed.append(Violation(_pointer(path), code, message, limit, actual, setting))

    def _setting_of(self, code: str, limit: int) -> str | None:
        """The setting that a limit is; None where the schema allows more than the setting."""
        name = _SETTINGS[code]
        return self._limits.overridden.get(name, f"limits.{name}") if limit == getattr(self._limits, name) else None

    def _path(self, level: int, place: int) -> list[str | int]:
        """The names and numbers that lead to a container."""
        steps = []
        while level:
            level, place, step = self._parent(level, place)
            steps.append(step)
        return steps[::-1]

    def _parent(self, level: int, place: int) -> tuple[int, int, str | int]:
        """The container that another is in, and what that is called there."""
        for containers in self._levels[len(self._starts) : level]:
            counts = [sum(isinstance(item, _CONTAINERS) for _, item in _items(each)) for each in containers]
            self._starts.append([0, *accumulate(counts)])
        starts = self._starts[level - 1]
        parent = bisect_right(starts, place) - 1
        steps = self._steps.get((level - 1, parent))
        if steps is None:
            items = _items(self._levels[level - 1][parent])
            steps = self._steps[level - 1, parent] = [step for step, item in items if isinstance(item, _CONTAINERS)]
        return level - 1, parent, steps[place - starts[parent]]

    def _limit(self, name: str, keyword: str, branches: Branches) -> int:
        """The limit of an element that is beyond the general one."""
        general: int = getattr(self._limits, name)
        said = [] if name in self._limits.overridden else [branch.get(keyword) for branch in branches.values()]
        return max([general, *(limit for limit in said if isinstance(limit, int))])

    def _branches_at(self, level: int, place: int) -> Branches:
        """The parts of the schema that apply to a container; kept, so that its siblings share the lookups above."""
        if self._schema is None:
            return {}
        wanted: list[tuple[int, int, str | int]] = []
        while level and (level, place) not in self._branches:
            outer = self._parent(level, place)
            wanted.append((level, place, outer[2]))
            level, place = outer[:2]
        if not self._branches:
            self._branches[0, 0] = _branches(self._schema, self._schema)
        branches = self._branches[level, place]
        for level, place, step in reversed(wanted):
            branches = self._branches[level, place] = _within(self._schema, branches, step)
        return branches


def _has_long(containers: Iterable[Any], items: Iterable[Any], longest: int) -> bool:
    """Whether a key of the objects, or a string among the items, is too long; most of the time none is."""
    keys = chain.from_iterable([each for each in containers if isinstance(each, dict)])
    strings = [item for item in items if isinstance(item, str)]
    return max(map(len, chain(strings, map(str, keys))), default=0) > longest


def _items(container: Any) -> Iterable[tuple[str | int, Any]]:
    return container.items() if isinstance(container, dict) else enumerate(container)


def _pointer(path: Sequence[str | int]) -> str:
    """The path as a JSON pointer, cut where it grows too long."""
    steps = [step[:MOST_POINTER] if isinstance(step, str) else step for step in path[:MOST_POINTER]]
    return json_pointer(steps)[:MOST_POINTER]


def _within(schema: Schema | None, branches: Branches, step: str | int) -> Branches:
    """The parts of a schema that apply to an element, given those that apply to its container."""
    if schema is None:
        return {}
    children = [child for parent in branches.values() for child in _children(parent, step)]
    return {key: branch for child in children for key, branch in _branches(schema, child).items()}


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


def _branches(root: Schema, schema: Any) -> Branches:
    """A schema with its references and alternatives, each of them once, however often they refer to each other."""
    found: Branches = {}
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, Mapping) or id(one) in found:
            continue
        found[id(one)] = one
        waiting.append(target_of(one.get("$ref"), root))
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
        overridden: dict[str, str] = {}
        if name in limits.tool_array_limits:
            own["max_array_size"] = limits.tool_array_limits[name]
            overridden["max_array_size"] = join("limits.tool_array_limits", name)
        if name in limits.tools:
            settings = limits.tools[name]
            fields = (field for field in Limits.__struct_fields__ if field.startswith("max_"))
            set_here = {field: value for field in fields if (value := getattr(settings, field)) is not None}
            own |= set_here
            overridden |= {field: join(join("limits.tools", name), field) for field in set_here}
        if own:
            special[name] = msgspec.structs.replace(general, **own, overridden=overridden)
    return general, special
