"""Arguments of a tool from words on a command line, read as the tool's schema would have them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

_JSON_TYPES = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}


def read_arguments(pairs: Iterable[str], base: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with each `name=value` added. Raises `ValueError` with a reason."""
    given: dict[str, Any] = {}
    properties = schema.get("properties", {})
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            hint = f"; pass a file of tools with --target {pair}" if pair.endswith(".py") else ""
            wanted = [each for each in properties if each in schema.get("required", ())] or [*properties]
            if not hint and not separator and pair not in properties and len(wanted) == 1:
                hint = f"; did you mean {wanted[0]}={pair}?"
            raise ValueError(f"{pair!r} is not name=value{hint}")
        if name in given:
            raise ValueError(f"{name!r} is given twice")
        if not pair.isascii() and pair != pair.encode(errors="replace").decode():
            raise ValueError(f"{pair!r} is not UTF-8")
        types = _types(properties.get(name, True), schema)
        given[name] = _value(text, types)
        if text[:1] in ("{", "[") and given[name] is text and types and "string" not in types:
            raise ValueError(
                f'{name} is not valid JSON: {_wrong_with(text)}. Quote names and texts: \'{name}={{"a": "b"}}\''
            )
    return {**base, **given}


def _value(text: str, types: set[str]) -> Any:
    """JSON where it is JSON, else text. What takes nothing but text gets the text: `5` stays "5"."""
    if types <= {"string", "null"} and "string" in types:
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _wrong_with(text: str) -> str:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        return str(error)
    return "it cannot be read"


def read_json(source: str) -> dict[str, Any]:
    """An object from JSON text, from `@file`, or from stdin for `-`. Raises `ValueError` with a reason."""
    try:
        if source == "-":
            content = sys.stdin.buffer.read()
        else:
            content = Path(source[1:]).read_bytes() if source.startswith("@") else source.encode()
        value = msgspec.json.decode(content)
    except OSError as error:
        raise ValueError(f"{source[1:]}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f'--json is not valid JSON: {error}. Write it as \'{{"name": "value"}}\'') from None
    if not isinstance(value, dict):
        raise ValueError("--json must be an object")
    return value


def kind_in_words(schema: Any) -> str:
    """A schema as a person would say it: `integer`, `string[]`, `{dice, total}`, the name of what is defined apart."""
    if not isinstance(schema, Mapping):
        return "any"
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2] or "any"
    if "enum" in schema:
        return " | ".join(msgspec.json.encode(each).decode() for each in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(dict.fromkeys(kind_in_words(each) for each in schema[key]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"{kind_in_words(schema.get('items', True))}[]"
    if kind == "object" and schema.get("properties"):
        return f"{{{', '.join(schema['properties'])}}}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)


def _types(schema: Any, root: Mapping[str, Any], depth: int = 16) -> set[str]:
    """The JSON types that a schema takes, as far as it says so; empty when it does not."""
    if not isinstance(schema, Mapping) or depth == 0:
        return set()
    if "$ref" in schema:
        return _types(_resolved(str(schema["$ref"]), root), root, depth - 1)
    if "enum" in schema:
        return {_JSON_TYPES.get(type(each), "object") for each in schema["enum"]}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            choices = [_types(each, root, depth - 1) for each in schema[key]]
            return set().union(*choices) if all(choices) else set()
    kind = schema.get("type", [])
    return {kind} if isinstance(kind, str) else set(kind)


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference within the schema leads to; True, which says nothing, when it leads nowhere."""
    steps = [step.replace("~1", "/").replace("~0", "~") for step in reference.removeprefix("#").split("/")[1:]]
    return reduce(lambda place, step: place.get(step, True) if isinstance(place, Mapping) else True, steps, root)
