"""Schemas without references, for those who do not follow any.

Every reference is replaced by a copy of what it refers to, with these rules:

- Only references within the schema are followed, by JSON pointer; others would have to be fetched, and are refused.
- What stands beside a reference holds as well (in draft-07 and before it is ignored, as those drafts have it).
- A schema that refers to itself has no such form: the error names the circle.
- References may lead through 32 others. Definitions that double what they refer to would still become 2³² copies, so
  what references bring in may altogether be as long as a million characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote

PlainSchema: TypeAlias = dict[str, Any]

DEEPEST_REFERENCE = 32
MOST_INLINED = 1_000_000
# fmt: off
APPLICATORS = frozenset([
    "additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "contentSchema", "else", "if", "items",
    "not", "oneOf", "prefixItems", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
])
"""The keywords whose value is a schema, or a list of them."""
NAMED_SCHEMAS = frozenset(["properties", "patternProperties", "dependentSchemas", "dependencies"])
"""The keywords whose value has schemas by name."""
_DEFINITIONS = frozenset(["$defs", "definitions"])
_PLACES = frozenset(["$ref", "$anchor", "$dynamicAnchor", "$recursiveAnchor", *_DEFINITIONS])
"""What is for references alone; no copy has it."""
_REMARKS = frozenset([
    "$comment", "$id", "$schema", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly",
])
"""What says nothing about which values are valid. Beside a reference, it is the last word."""
# fmt: on
_SPEAK_OF_EACH_OTHER = (
    frozenset(["properties", "patternProperties", "additionalProperties"]),
    frozenset(["items", "prefixItems", "additionalItems"]),
    frozenset(["contains", "minContains", "maxContains"]),
    frozenset(["if", "then", "else"]),
)
"""Keywords whose meaning depends on the others of their group in the same schema."""
_SPEAK_OF_ALL = frozenset(["unevaluatedItems", "unevaluatedProperties"])


def inline_references(schema: Mapping[str, Any], private: str | None = None) -> PlainSchema:
    """A copy of a schema without references. The schema itself stays as it is.

    The keyword `private` is not copied, nor are, where it is true, defaults and examples: of such a schema, of what is
    in it and of what it is in. Raises `ValueError` for circular, too deep or foreign references, `KeyError` for one
    that leads nowhere.
    """
    try:
        return _as_schema(_Inlining(schema, private).copy(schema))
    except RecursionError:
        raise ValueError("The schema is nested too deeply") from None


class _Inlining:
    """One walk through a schema, and where in it references have led so far."""

    def __init__(self, root: Mapping[str, Any], private: str | None) -> None:
        self._root = root
        self._private = private
        self._followed: list[str] = []
        self._inlined = 0
        self._private_around = 0  # How many of the schemas that the walk is in are private,
        self._private_found = 0  # and how many it has come through.
        self._only_reference_counts = "/draft-0" in str(root.get("$schema", ""))

    def copy(self, schema: Any) -> Any:
        """A copy without references; of what is no schema, just a copy."""
        if not isinstance(schema, Mapping):
            return self._copy_value(schema)
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if keyword in schema:
                raise ValueError(f"{keyword} depends on who refers to it, and cannot be inlined")
        self._count("")
        is_private, found_before = bool(self._private and schema.get(self._private)), self._private_found
        self._private_around += is_private
        self._private_found += is_private
        copied: PlainSchema = {}
        for keyword, value in schema.items():
            self._count(keyword)
            if keyword in _PLACES or keyword == self._private:
                continue
            if keyword == "$id" and self._followed:  # Of which there may be several copies.
                continue
            if keyword in NAMED_SCHEMAS and isinstance(value, Mapping):
                copied[keyword] = {self._count(name): self._copy_each(named) for name, named in value.items()}
            elif keyword in APPLICATORS:
                copied[keyword] = self._copy_each(value)
            else:
                copied[keyword] = self._copy_value(value)
        whole = self._join(self._follow(schema["$ref"]), copied) if "$ref" in schema else copied
        has_private = self._private_around > 0 or self._private_found > found_before
        self._private_around -= is_private
        if has_private and isinstance(whole, dict):
            whole.pop("default", None)
            whole.pop("examples", None)
        return whole

    def _copy_each(self, value: Any) -> Any:
        return [self.copy(each) for each in value] if isinstance(value, list) else self.copy(value)

    def _copy_value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            self._count("")
            return {self._count(key): self._copy_value(each) for key, each in value.items()}
        if isinstance(value, list):
            self._count("")
            return [self._copy_value(each) for each in value]
        return self._count(value)

    def _count(self, value: Any) -> Any:
        if self._followed:  # What the author wrote out counts nothing, however long it is.
            self._inlined += len(value) + 4 if isinstance(value, str) else 4
            if self._inlined > MOST_INLINED:
                raise ValueError(f"References bring in more than {MOST_INLINED} characters")
        return value

    def _follow(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise ValueError(f"The reference {reference!r} is not one within the schema, by JSON pointer")
        if reference in self._followed:
            circle = [*self._followed[self._followed.index(reference) :], reference]
            raise ValueError(f"Circular reference: {' -> '.join(map(_name, circle))}")
        if len(self._followed) == DEEPEST_REFERENCE:
            raise ValueError(f"Maximum recursion depth of {DEEPEST_REFERENCE} references exceeded")
        found = self._find(reference)
        self._followed.append(reference)
        copied = self.copy(found)
        self._followed.pop()
        return copied

    def _find(self, reference: str) -> Any:
        found = _followed(reference, self._root)
        if not isinstance(found, Mapping | bool):
            raise ValueError(f"The reference {reference!r} leads to what is no schema")
        return found

    def _join(self, referred: Any, beside: PlainSchema) -> Any:
        """One schema for which both hold."""
        if not beside:
            return referred
        referred = _as_schema(referred)
        remarks = {key: value for key, value in beside.items() if key in _REMARKS or key.startswith("x-")}
        rules = {} if self._only_reference_counts else {k: v for k, v in beside.items() if k not in remarks}
        if rules and _depend_on_each_other(rules, referred):
            return {**beside, "allOf": [*beside.get("allOf", ()), referred]}
        return {**referred, **rules, **remarks}


def alternatives(schema: Any) -> Iterator[PlainSchema]:
    """A schema without references, and those of which one, some or all hold as well."""
    if isinstance(schema, dict):
        yield schema
        for keyword in ("anyOf", "oneOf", "allOf"):
            for each in schema.get(keyword, ()):
                yield from alternatives(each)


def _depend_on_each_other(one: PlainSchema, other: PlainSchema) -> bool:
    """Whether they mean something else in one schema than they do apart."""
    return (
        not one.keys().isdisjoint(other)
        or not _SPEAK_OF_ALL.isdisjoint(one.keys() | other.keys())
        or any(group & one.keys() and group & other.keys() for group in _SPEAK_OF_EACH_OTHER)
    )


def _as_schema(schema: Any) -> PlainSchema:
    return schema if isinstance(schema, dict) else {} if schema is True else {"not": {}}


def target_of(reference: Any, root: Any) -> Any:
    """The part of a schema that a `$ref` within it leads to; None: it is none, or leads elsewhere or nowhere."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    try:
        return _followed(reference, root)
    except KeyError:
        return None


def _followed(reference: str, root: Any) -> Any:
    found = root
    for step in _steps(reference):
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, Mapping) and step in found:
            found = found[step]
        else:
            raise KeyError(_name(reference))
    return found


def _steps(reference: str) -> list[str]:
    return [unquote(step).replace("~1", "/").replace("~0", "~") for step in reference.split("/")[1:]]


def _name(reference: str) -> str:
    """What people call the place: the name of a definition, else the pointer to it."""
    steps = _steps(reference)
    return steps[1] if len(steps) == 2 and steps[0] in _DEFINITIONS else reference
