"""What a validator found, in words that say what to change and repeat no value.

1. A missing member and an unknown one are found where they are, or should be: `/address/street`, not `/address`.
2. An unknown member names the known one that is nearest.
3. For alternatives, each says what it wanted.

All of it is made for refused arguments only, and is bounded: in findings, in alternatives, in characters.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import jsonschema_rs

from dragoman.schemas.rules import rule_code

MOST_FINDINGS = 20
_LONGEST = 500
_LONGEST_NAME = 100
_MOST_ALTERNATIVES = 5
_MOST_IN_EACH = 2
_DEEPEST = 2
_MOST_KNOWN = 200
_NEAR = 0.6

SchemaFinding = dict[str, str]


def findings_of(
    errors: Iterable[jsonschema_rs.ValidationError], schema: Mapping[str, Any]
) -> tuple[list[SchemaFinding], tuple[str, ...]]:
    """Findings, each with `path`, a JSON pointer, and `message`; and for each the code of the rule that it breaks."""
    found: list[SchemaFinding] = []
    rules: list[str] = []
    for error in errors:
        rule = rule_code(error.kind.name, getattr(error.kind, "types", ()))
        for path, message in islice(_worded(error, schema), MOST_FINDINGS - len(found)):
            found.append({"path": json_pointer(path)[:_LONGEST], "message": message[:_LONGEST]})
            rules.append(rule)
    return found, tuple(rules)


def without_branches(schema: Any) -> Any:
    """A copy of a schema whose alternatives are denied twice.

    It allows the same values. But a validator that refuses one does not collect what each alternative has against it,
    which takes seconds for a large value.
    """
    if isinstance(schema, list):
        return list(map(without_branches, schema))
    if not isinstance(schema, Mapping):
        return schema
    copy = {key: without_branches(value) for key, value in schema.items()}
    hidden = {key: copy.pop(key) for key in ("anyOf", "oneOf") if isinstance(copy.get(key), list)}
    if hidden:
        copy["allOf"] = [*copy.get("allOf", ()), *({"not": {"not": {key: value}}} for key, value in hidden.items())]
    return copy


def json_pointer(path: Iterable[str | int]) -> str:
    """Where something is, as RFC 6901 has it."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def dotted(path: Iterable[str | int]) -> str:
    """A path as a person writes it: `address.street`."""
    return ".".join(str(step)[:_LONGEST_NAME] for step in path)


def with_place(finding: Mapping[str, Any]) -> str:
    """A finding as one line; where it is stands in front, unless the message names it."""
    path, message = str(finding["path"]), str(finding["message"])
    name = ".".join(step.replace("~1", "/").replace("~0", "~")[:_LONGEST_NAME] for step in path.split("/")[1:])
    if not name or message.startswith((f"{name} is required", f"unknown argument `{name}`")):
        return message
    return f"{path}: {message}"


def _worded(
    error: jsonschema_rs.ValidationError, schema: Mapping[str, Any], depth: int = _DEEPEST
) -> Iterator[tuple[list[str | int], str]]:
    """Where an error is, and what it says; one that is about several members is several."""
    path: list[str | int] = list(error.instance_path)
    kind: Any = error.kind
    if kind.name == "required":
        missing = [*path, kind.property]
        yield missing, f"{dotted(missing)} is required"
    elif kind.name in ("additionalProperties", "unevaluatedProperties"):
        known = _known_beside(error.schema_path, schema)
        for name in islice(kind.unexpected, MOST_FINDINGS):
            unknown = [*path, name]
            yield unknown, f"unknown argument `{dotted(unknown)}`{_nearest(path, name, known)}"
    elif kind.name in ("anyOf", "oneOf") and depth and any(kind.context):
        yield path, _alternatives(kind.context, len(path), schema, depth)
    elif kind.name == "not" and isinstance(kind.schema, Mapping) and [*kind.schema] == ["not"]:
        yield path, "the value fits none of the alternatives"
    else:
        yield path, error.message


def _alternatives(
    branches: Sequence[Sequence[jsonschema_rs.ValidationError]], start: int, schema: Mapping[str, Any], depth: int
) -> str:
    """What each alternative says against a value: first the types that it is not, then the rest one by one."""
    types: list[str] = []
    others: list[str] = []
    for branch in islice(branches, _MOST_ALTERNATIVES):
        kind: Any = branch[0].kind if len(branch) == 1 and len(branch[0].instance_path) == start else None
        if kind is not None and kind.name == "type":
            types += kind.types
        else:
            worded = (each for error in branch for each in _worded(error, schema, depth - 1))
            said = [_within(path[start:], message) for path, message in islice(worded, _MOST_IN_EACH)]
            more = ["and more"] if next(worded, None) is not None else []
            others.append(", ".join([*said, *more]))
    if len(branches) > _MOST_ALTERNATIVES:
        others.append(f"and {len(branches) - _MOST_ALTERNATIVES} more alternatives")
    of_types = " or ".join(f'"{each}"' for each in dict.fromkeys(types))
    if not others:
        return f"the value is not of type {of_types}"
    wanted = [*([f"it is not of type {of_types}"] if types else []), *others]
    return f"the value fits none of the alternatives: {'; or '.join(wanted)}"


def _within(path: Sequence[str | int], message: str) -> str:
    names_its_place = message.endswith(" is required") or message.startswith("unknown argument ")
    return message if not path or names_its_place else f"{dotted(path)}: {message}"


def _known_beside(path: Sequence[str | int], schema: Any) -> list[str]:
    """The members that the schema knows which has the rule at this path of it."""
    try:
        for step in path[:-1]:
            schema = schema[step]
    except (KeyError, IndexError, TypeError):
        return []
    known = schema.get("properties") if isinstance(schema, Mapping) else None
    return list(islice(known, _MOST_KNOWN)) if isinstance(known, Mapping) else []


def _nearest(path: Sequence[str | int], name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR) if len(name) <= _LONGEST_NAME else []
    return f"; did you mean `{dotted([*path, close[0]])}`?" if close else ""
