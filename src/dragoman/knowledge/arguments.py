"""The arguments of actions, held to the published schemas.

1. A published schema is the contract's own: it takes members that it does not name.
2. A signed request may have such members. They have no effect, and its answer names them in `usage.ignored`.
3. The tools take no other members, as a model's misspelling is best answered at once.
4. A JSON Merge Patch may have null for a field, which removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.schemas.references import PlainSchema

MOST_IGNORED: Final = 20
LONGEST_IGNORED: Final = 100
"""Characters of a path in `usage.ignored`."""


def known_part(schema: PlainSchema, arguments: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The members of some arguments that a schema names, and paths of the others."""
    ignored: list[str] = []
    return _known(schema, arguments, "", ignored), ignored


def removable(schema: PlainSchema, merge_patch: str | None) -> PlainSchema:
    """A schema that takes null for a field in the member that is a Merge Patch, if one is."""
    if merge_patch is None:
        return schema
    properties = schema["properties"]
    return {**schema, "properties": {**properties, merge_patch: _removable(properties[merge_patch])}}


def closed(schema: PlainSchema) -> PlainSchema:
    """A schema that takes no members but those that it names."""
    if "properties" not in schema:
        return schema
    properties = {name: closed(each) for name, each in schema["properties"].items()}
    return {**schema, "additionalProperties": False, "properties": properties}


def _known(schema: Mapping[str, Any], value: Any, path: str, ignored: list[str]) -> Any:
    named = schema.get("properties")
    if named is None or not isinstance(value, dict):
        return value
    known = {}
    for name, each in value.items():
        if name in named:
            known[name] = _known(named[name], each, f"{path}{name}.", ignored)
        elif len(ignored) < MOST_IGNORED:
            ignored.append(f"{path}{name}"[:LONGEST_IGNORED])
    return known


def _removable(schema: PlainSchema) -> PlainSchema:
    if "properties" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {**schema, "properties": {name: _removable(each) for name, each in schema["properties"].items()}}
