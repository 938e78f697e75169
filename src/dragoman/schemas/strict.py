"""Schemas for OpenAI's strict mode, and the way back for arguments that were made for them.

In strict mode every object is closed and has all of its properties. What was optional may be null instead; what the
mode does not know is dropped, and has to be checked when the call comes back. What it refuses and cannot be done
without stays, and is named.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any, NamedTuple

from dragoman.schemas.findings import json_pointer
from dragoman.schemas.references import APPLICATORS, PlainSchema, alternatives

# fmt: off
_KNOWN = frozenset([
    "allOf", "anyOf", "const", "description", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "items",
    "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "multipleOf", "oneOf", "pattern",
    "prefixItems", "properties", "required", "title", "type",
])
"""Keywords that stay. All others are dropped: OpenAI refuses a schema with a keyword that it does not know. Without
them a schema takes more values, and never fewer."""
_FORMATS = frozenset(["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"])
# fmt: on
_REFUSED = frozenset(["allOf", "oneOf", "prefixItems"])
"""What OpenAI refuses, and cannot be left out."""
_REFUSED_AT_THE_TOP = ("anyOf", "enum")
_SAY_WHAT_IT_IS = frozenset(["type", "enum", "const", "anyOf", "oneOf", "allOf"])
"""One of them OpenAI wants in every schema."""
_LOOKS_AROUND = re.compile(r"(?<!\\)(?:\\\\)*\(\?<?[=!]")
_REFUSAL = "refused by OpenAI in strict mode"


class Loss(NamedTuple):
    """Something that a strict schema does not have as its author wrote it."""

    path: str
    """Where it was, as a JSON pointer."""
    what: str
    why: str
    is_harmless: bool
    """Whether the schema can be used all the same, and takes no less than before."""


class StrictMode:
    """Makes strict schemas; `losses` gets what they cost."""

    def __init__(self, losses: list[Loss]) -> None:
        self._losses = losses

    def apply(self, schema: PlainSchema) -> PlainSchema:
        """A tool's parameters in a form that strict mode takes. The schema that is given stays as it is."""
        for keyword in _REFUSED_AT_THE_TOP:
            if keyword in schema:
                self._lose((keyword,), f"{keyword} at the top", _REFUSAL)
        if schema.get("type", "object") != "object":
            self._lose(("type",), "a top that is not just an object", _REFUSAL)
        made: PlainSchema = self._apply(schema)
        return made

    def _apply(self, schema: Any, *path: str) -> Any:
        if isinstance(schema, list):
            return [self._apply(each, *path, str(number)) for number, each in enumerate(schema)]
        if not isinstance(schema, dict):
            self._lose(path, "a schema without a type", _REFUSAL)  # True or false, which say nothing of one.
            return schema
        made: PlainSchema = {}
        for keyword, value in schema.items():
            if keyword == "properties" and isinstance(value, dict):
                made[keyword] = {name: self._apply(each, *path, keyword, name) for name, each in value.items()}
            elif keyword == "additionalProperties":
                continue  # Its turn comes with the object.
            elif (what := _dropped(keyword, value)) is not None:
                self._lose((*path, keyword), what)
            else:
                if keyword in _REFUSED or (keyword == "items" and isinstance(value, list)):
                    self._lose((*path, keyword), "a list of items" if keyword == "items" else keyword, _REFUSAL)
                made[keyword] = self._apply(value, *path, keyword) if keyword in APPLICATORS else deepcopy(value)
        if _is_object(schema):
            self._close(made, schema, path)
        if made.keys().isdisjoint(_SAY_WHAT_IT_IS):
            self._lose(path, "a schema without a type", _REFUSAL)
        if _may_be("array", schema) and made.keys().isdisjoint(("items", "prefixItems")):
            self._lose(path, "an array without items", _REFUSAL)
        return made

    def _close(self, made: PlainSchema, schema: PlainSchema, path: tuple[str, ...]) -> None:
        """Take away what has no name, and make all that has one required."""
        extra = schema.get("additionalProperties", False)
        if extra is not False:
            what = "additionalProperties: true" if extra is True else "additionalProperties with a schema"
            self._lose((*path, "additionalProperties"), what, "incompatible with strict mode")
        made.setdefault("type", "object")
        required = schema.get("required", ())
        properties = made.get("properties", {})
        made["properties"] = {name: each if name in required else nullable(each) for name, each in properties.items()}
        made["required"] = list(properties)
        made["additionalProperties"] = False

    def _lose(self, path: tuple[str, ...], what: str, harm: str = "") -> None:
        self._losses.append(Loss(json_pointer(path), what, harm or "dropped", not harm))


def _dropped(keyword: str, value: Any) -> str | None:
    """What a schema in strict mode does without, if it cannot have this; None if it can."""
    if keyword == "format":
        return None if value in _FORMATS else f"format {value}"
    if keyword == "pattern":
        return "pattern that looks around" if isinstance(value, str) and _LOOKS_AROUND.search(value) else None
    return None if keyword in _KNOWN else keyword


def nullable(schema: Any) -> Any:
    """The schema with null as one more value, if it is not one already."""
    if allows_null(schema):
        return schema
    if not isinstance(schema, dict) or not schema.keys() & {"type", "enum", "const", "anyOf", "oneOf"}:
        return {"anyOf": [schema, {"type": "null"}]}
    made = {key: value for key, value in schema.items() if key != "const"}
    if "const" in schema:
        made["enum"] = [schema["const"], None]
    elif "enum" in schema and None not in schema["enum"]:
        made["enum"] = [*schema["enum"], None]
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        made["type"] = list(dict.fromkeys([*types, "null"]))
    for keyword in {"anyOf", "oneOf"} & schema.keys():
        if not any(map(allows_null, schema[keyword])):
            made[keyword] = [*schema[keyword], {"type": "null"}]
    return made if allows_null(made) else {"anyOf": [schema, {"type": "null"}]}


def allows_null(schema: Any) -> bool:
    """Whether null is valid, as far as the usual keywords for it say."""
    if not isinstance(schema, dict):
        return schema is not False
    types = schema.get("type", "null")
    return (
        (types == "null" or (isinstance(types, list) and "null" in types))
        and None in schema.get("enum", (None,))
        and schema.get("const") is None
        and all(any(map(allows_null, schema[keyword])) for keyword in ("anyOf", "oneOf") if keyword in schema)
        and all(map(allows_null, schema.get("allOf", ())))
    )


def without_nulls(value: Any, schema: Any) -> Any:
    """Arguments as the schema takes them that was not strict: a null stands for nothing, where it cannot be one."""
    if not isinstance(schema, dict):  # It says nothing about what is in the value, however deep that is.
        return value
    if isinstance(value, list):
        items = next((each["items"] for each in alternatives(schema) if "items" in each), None)
        return [without_nulls(each, items) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, each in value.items():
        whole = next((one for one in alternatives(schema) if name in one.get("properties", {})), {})
        under = whole.get("properties", {}).get(name, True)
        if each is not None or name in whole.get("required", ()) or allows_null(under):
            kept[name] = without_nulls(each, under)
    return kept


def _is_object(schema: PlainSchema) -> bool:
    return _may_be("object", schema) or "properties" in schema or "additionalProperties" in schema


def _may_be(kind: str, schema: PlainSchema) -> bool:
    types = schema.get("type")
    return types == kind or (isinstance(types, list) and kind in types)
