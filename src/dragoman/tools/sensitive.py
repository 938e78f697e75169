"""Values of arguments that a schema marks with `x-sensitive`, and texts without them.

An exception may quote what it was given. What is logged and answered about it shows `[REDACTED]` in place of every such
value that is at least four characters long; a shorter one would take too much else with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

from dragoman.telemetry.clean import REDACTED
from dragoman.telemetry.tracebacks import Traceback
from dragoman.tools.references import target_of
from dragoman.tools.schema import Schema

MARK = "x-sensitive"
SHORTEST = 4
_MOST_VALUES = 1000
_DEEPEST = 64
_COMBINED = ("allOf", "anyOf", "oneOf", "then", "else", "if", "dependentSchemas", "dependencies")
_OF_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_OF_ITEMS = ("prefixItems", "items", "additionalItems", "unevaluatedItems", "contains")

Hide: TypeAlias = Callable[[str], str]


def is_marked(schema: Schema) -> bool:
    """Whether anything in a schema may be marked; looked at once, when a tool is registered."""
    try:
        return MARK in json.dumps(schema)
    except (TypeError, ValueError, RecursionError):
        return True


def hiding(schema: Schema, arguments: Any) -> Hide | None:
    """What takes the sensitive ones of these arguments out of a text; None if there are none."""
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
