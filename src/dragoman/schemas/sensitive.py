"""Values that a schema marks with `x-sensitive`: texts without them, and copies with a token in their place.

An exception may quote what it was given. What is logged and answered about it shows `[REDACTED]` in place of every such
value that is at least four characters long; a shorter one would take too much else with it. In a result, which has a
schema of its own, the marked values themselves are replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from dragoman.schemas.references import APPLICATORS, NAMED_SCHEMAS, target_of
from dragoman.schemas.schema import Schema
from dragoman.telemetry.clean import REDACTED
from dragoman.telemetry.tracebacks import Traceback

MARK = "x-sensitive"
SHORTEST = 4
_MOST_VALUES = 1000
_DEEPEST = 64
_COMBINED = ("allOf", "anyOf", "oneOf", "then", "else", "if", "dependentSchemas", "dependencies")
_OF_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_OF_ITEMS = ("prefixItems", "items", "additionalItems", "unevaluatedItems", "contains")

_NAMED = NAMED_SCHEMAS | {"$defs", "definitions"}

Hide: TypeAlias = Callable[[str], str]


def may_be_marked(schema: Schema) -> bool:
    """Whether anything in a schema may be marked; looked at once, when a tool is registered."""
    try:
        return MARK in json.dumps(schema)
    except (TypeError, ValueError, RecursionError):
        return True


def if_marked(schema: Any) -> dict[str, Any] | None:
    """The schema, if it is one and anything in it may be marked."""
    return schema if isinstance(schema, dict) and may_be_marked(schema) else None


def hiding(schema: Schema | None, arguments: Any) -> Hide | None:
    """What takes the sensitive ones of these arguments out of a text; None if there are none."""
    if schema is None:
        return None
    try:
        plain = msgspec.to_builtins(arguments, enc_hook=str, str_keys=True)
    except Exception:  # The author's own types may do anything.
        plain = arguments
    try:
        marked = _Walk(schema).marked(schema, plain)
        found = {text for value in marked for text in _texts(value) if len(text) >= SHORTEST}
    except RecursionError:  # Nested too deeply to find out: nothing of what was said can be shown.
        return lambda _: REDACTED
    if not found:
        return None
    if len(found) > _MOST_VALUES:
        return lambda _: REDACTED
    secrets = sorted(found, key=len, reverse=True)

    def hide(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, REDACTED)
        return text

    return hide


def hide_within(hide: Hide, value: Any, depth: int = _DEEPEST) -> Any:
    """A copy of a JSON value with every text in it hidden, names of members included."""
    if isinstance(value, str):
        return value.map(hide) if isinstance(value, Traceback) else hide(value)
    if depth == 0 or value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if hide(str(value)) == str(value) else REDACTED
    if isinstance(value, Mapping):
        return {hide(str(key)): hide_within(hide, each, depth - 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [hide_within(hide, each, depth - 1) for each in value]
    return value


def redact(schema: Schema | None, value: Any, token: str = REDACTED) -> Any:
    """A copy of a JSON value with `token` in place of each value that the schema marks. Null stays null.

    A mark counts in every branch of a combination, and a reference that cannot be followed counts as a mark. An object
    of a type that JSON does not have is replaced as a whole if the schema marks anything within it. Raises
    `RecursionError` for a value that is nested too deeply.
    """
    return value if schema is None else _redacted([schema], value, schema, token)


def open_marked(schema: Schema) -> Schema:
    """A copy of a schema that accepts any value, and so the token of `redact`, wherever it marks one."""
    return _opened(schema, schema) if may_be_marked(schema) else schema


def _redacted(schemas: list[Any], value: Any, root: Schema, token: str) -> Any:
    applying = _in_place(schemas, root)
    if not applying or value is None:
        return value
    if any(each.get(MARK) is True or _leads_nowhere(each, root) for each in applying):
        return token
    if isinstance(value, Mapping):
        members = ((name, item, name if isinstance(name, str) else json.dumps(name)) for name, item in value.items())
        return {name: _redacted(_of_member(applying, text), item, root, token) for name, item, text in members}
    if isinstance(value, list | tuple):
        return [_redacted(_of_item(applying, index), item, root, token) for index, item in enumerate(value)]
    if isinstance(value, str | int | float):
        return value
    return token if any(may_be_marked(each) or "$ref" in json.dumps(each, default=str) for each in applying) else value


def _opened(schema: Any, root: Schema) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    if any(each.get(MARK) is True for each in _in_place([schema], root)):
        return {MARK: True, **{key: schema[key] for key in ("title", "description") if key in schema}}
    opened: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping):
            opened[key] = {name: _opened(each, root) for name, each in value.items()}
        elif key in APPLICATORS:
            opened[key] = [_opened(each, root) for each in value] if isinstance(value, list) else _opened(value, root)
        else:
            opened[key] = value
    return opened


def _in_place(schemas: Iterable[Any], root: Schema) -> list[Mapping[str, Any]]:
    """The schemas, and all those that combinations and references in them apply to the same value."""
    found: dict[int, Mapping[str, Any]] = {}
    pending = list(schemas)
    while pending:
        schema = pending.pop()
        if isinstance(schema, Mapping) and id(schema) not in found:
            found[id(schema)] = schema
            pending += _alternatives(schema, root)
    return list(found.values())


def _leads_nowhere(schema: Mapping[str, Any], root: Schema) -> bool:
    return isinstance(schema.get("$ref"), str) and target_of(schema["$ref"], root) is None


def _of_member(applying: list[Mapping[str, Any]], name: str) -> list[Any]:
    found: list[Any] = []
    for schema in applying:
        named, patterns = schema.get("properties"), schema.get("patternProperties")
        known = [named[name]] if isinstance(named, Mapping) and name in named else []
        if isinstance(patterns, Mapping):
            known += [each for pattern, each in patterns.items() if _matches(pattern, name)]
        found += known or [schema.get(keyword) for keyword in _OF_MEMBERS]
    return found


def _of_item(applying: list[Mapping[str, Any]], index: int) -> list[Any]:
    found: list[Any] = []
    for schema in applying:
        items = schema.get("items")
        first = items if isinstance(items, list) else schema.get("prefixItems")
        if isinstance(first, list) and index < len(first):
            found.append(first[index])
        else:
            found += [schema.get(keyword) for keyword in ("items", "additionalItems", "unevaluatedItems")]
        found.append(schema.get("contains"))
    return found


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # Not every pattern of JSON Schema is one of Python's.
        return True


class _Walk:
    """One walk through a schema and a value together. Each pair of their parts is looked at once, as schemas may refer
    to themselves."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._seen: set[tuple[int, int]] = set()

    def marked(self, schema: Any, value: Any) -> Iterator[Any]:
        """The values that the schema marks, each as a whole."""
        if not isinstance(schema, Mapping) or (id(schema), id(value)) in self._seen:
            return
        self._seen.add((id(schema), id(value)))
        if schema.get(MARK) is True:
            yield value
            return
        for each in _alternatives(schema, self._root):
            yield from self.marked(each, value)
        if isinstance(value, Mapping):
            named, others = schema.get("properties"), [schema.get(keyword) for keyword in _OF_MEMBERS]
            for name, item in value.items():
                known = named.get(name) if isinstance(named, Mapping) else None
                for each in (*_each(schema.get("patternProperties")), *(others if known is None else (known,))):
                    yield from self.marked(each, item)
        elif isinstance(value, list | tuple):
            of_items = [each for keyword in _OF_ITEMS for each in _each(schema.get(keyword))]
            for item in value:
                for each in of_items:
                    yield from self.marked(each, item)


def _each(found: Any) -> Iterable[Any]:
    """The schemas that stand after a keyword: one, a list of them, or some by name. None is matched: that could take
    long, and a mark that may apply counts."""
    if isinstance(found, list):
        return found
    return (found, *found.values()) if isinstance(found, Mapping) else ()


def _alternatives(schema: Mapping[str, Any], root: Schema) -> Iterator[Any]:
    for keyword in _COMBINED:
        yield from _each(schema.get(keyword))
    yield target_of(schema.get("$ref"), root)


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value as they are, and as Python and JSON quote them."""
    if isinstance(value, str):
        quoted = (repr(value), ascii(value), json.dumps(value), json.dumps(value, ensure_ascii=False))
        yield from (value, *(each[1:-1] for each in quoted))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
