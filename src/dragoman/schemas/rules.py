"""What the rules of a schema ask for, in words that repeat nothing of a value.

Messages of validators quote what they were given, which may be secret. These are made from the schema alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dragoman.schemas.references import PlainSchema, alternatives

_RULES = {
    "required": "Field required",
    "missing": "Field required",
    "additionalProperties": "Extra inputs are not permitted",
    "type": "Input should be a valid {}",
    "format": "Input should be a valid {}",
    "enum": "Input should be one of {}",
    "const": "Input should be {}",
    "pattern": "String should match the pattern {}",
    "minLength": "String should have at least {} characters",
    "maxLength": "String should have at most {} characters",
    "minItems": "List should have at least {} items",
    "maxItems": "List should have at most {} items",
    "minimum": "Input should be greater than or equal to {}",
    "exclusiveMinimum": "Input should be greater than {}",
    "maximum": "Input should be less than or equal to {}",
    "exclusiveMaximum": "Input should be less than {}",
    "multipleOf": "Input should be a multiple of {}",
}
_UNKNOWN_RULE = "Input is not valid"
_CODES = {
    "required": "missing",
    "additionalProperties": "extra_forbidden",
    "const": "literal_error",
    "pattern": "string_pattern_mismatch",
    "minLength": "string_too_short",
    "maxLength": "string_too_long",
    "minItems": "too_short",
    "maxItems": "too_long",
    "minimum": "greater_than_equal",
    "exclusiveMinimum": "greater_than",
    "maximum": "less_than_equal",
    "exclusiveMaximum": "less_than",
    "multipleOf": "multiple_of",
}
_TYPE_CODES = {
    "integer": "int_type",
    "number": "float_type",
    "string": "string_type",
    "boolean": "bool_type",
    "array": "list_type",
    "object": "dict_type",
    "null": "none_required",
}


def explain(schema: PlainSchema, arguments: Any, path: str, keyword: str) -> Iterator[tuple[str, str, str]]:
    """The fields that break a rule at a path (a JSON pointer), what the rule asks for, and its code.

    For a rule about which fields there are, those that are missing or too many; else, the place itself.
    """
    steps = [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]
    place, applying, value = _locate(schema, arguments, steps)
    fields = [[*place, name] for name in _unnamed(keyword, applying, value)] or [place]
    code = rule_code(keyword, _said("type", applying))
    for field in fields:
        yield ".".join(field) or "arguments", rule_in_words(keyword, applying), code


def _unnamed(keyword: str, applying: list[PlainSchema], value: Any) -> list[str]:
    """The fields of an object that break a rule about which fields there are."""
    if keyword == "required" and isinstance(value, Mapping):
        required = dict.fromkeys(name for schema in applying for name in schema.get("required", ()))
        return [name for name in required if name not in value]
    if keyword == "additionalProperties" and isinstance(value, Mapping):
        known = {name for schema in applying for name in schema.get("properties", ())}
        return [str(name) for name in value if name not in known]
    return []


def rule_code(keyword: str, types: Iterable[Any] = ()) -> str:
    """The name that Pydantic has for a broken rule, `int_type` for example; the keyword where it has none.

    `types` are those that the rule allows, if it is about the type. The first in the order of `_TYPE_CODES` counts.
    """
    if keyword != "type":
        return _CODES.get(keyword, keyword)
    allowed = list(types)
    return next((code for name, code in _TYPE_CODES.items() if name in allowed), keyword)


def rule_in_words(keyword: str, applying: list[PlainSchema]) -> str:
    """What a rule asks for, as far as the schemas that apply say."""
    words = _RULES.get(keyword, _UNKNOWN_RULE)
    if "{}" not in words:
        return words
    every = _said(keyword, applying)
    if not every:
        return _UNKNOWN_RULE
    if keyword == "type":
        return words.format(" or ".join(dict.fromkeys(every)))
    if keyword in ("enum", "const"):
        return words.format(", ".join(json.dumps(value, ensure_ascii=False, default=str) for value in every))
    return words.format(every[0])


def _said(keyword: str, applying: list[PlainSchema]) -> list[Any]:
    """The values that schemas give a keyword, those in lists one by one."""
    said = (schema[keyword] for schema in applying if keyword in schema)
    return [value for each in said for value in (each if isinstance(each, list) else [each])]


def _locate(schema: PlainSchema, value: Any, steps: list[str]) -> tuple[list[str], list[PlainSchema], Any]:
    """Where a path leads, the schemas that hold there, and the value.

    Pydantic's paths also name the member of a union that was tried, which is no place: those steps are left out.
    """
    place: list[str] = []
    here = list(alternatives(schema))
    for step in steps:
        further = [under for each in here for under in _under(each, step)]
        if not further and any("anyOf" in each or "oneOf" in each for each in here):
            continue
        place.append(step)
        here = [alternative for each in further for alternative in alternatives(each)]
        if isinstance(value, list):
            value = value[int(step)] if step.isdecimal() and int(step) < len(value) else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return place, here, value


def _under(schema: PlainSchema, step: str) -> list[Any]:
    properties = schema.get("properties", {})
    if step in properties:
        return [properties[step]]
    keyword = "items" if step.isdecimal() and "items" in schema else "additionalProperties"
    return [schema[keyword]] if isinstance(schema.get(keyword), dict) else []
