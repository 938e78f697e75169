"""JSON Schemas: compiled once, when a tool is registered, and never while a call waits.

`$schema` decides the draft. Without it a schema that was handed in is draft-07, as the Foundation has it, and one that
was made from Python types is 2020-12. References that would have to be fetched are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, TypeAlias

import jsonschema_rs

from dragoman.errors import InvalidArgument
from dragoman.schemas.findings import MOST_FINDINGS, SchemaFinding, findings_of, without_branches

Schema: TypeAlias = Mapping[str, Any]
DRAFT_07 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"
THOROUGHLY = 65_536
"""Of values with more bytes only the first thing that is wrong is told: to find all could take seconds."""


class Validator:
    """A compiled schema."""

    __slots__ = ("_brief", "_compiled", "_schema")

    def __init__(
        self, compiled: jsonschema_rs.Validator, schema: Schema, brief: jsonschema_rs.Validator | None = None
    ) -> None:
        """`brief`: the same schema `without_branches`, if it has any."""
        self._compiled = compiled
        self._schema = schema
        self._brief = brief or compiled

    def allows(self, value: Any) -> bool:
        """Whether nothing is wrong with a value; what is wrong is not searched for."""
        try:
            return self._compiled.is_valid(value)
        except (ValueError, RecursionError, OverflowError):
            return False

    def check(self, value: Any, thorough: bool = True) -> None:
        """Raise `InvalidArgument` with what is wrong and where; values are not repeated, they may be secret or huge.

        To find everything that is wrong takes time for each of them; unless it is `thorough`, only the first is found.
        """
        try:
            if self._compiled.is_valid(value):
                return
            errors = list(islice(self._compiled.iter_errors(value), MOST_FINDINGS)) if thorough else self._first(value)
            found, rules = findings_of(errors, self._schema)
        except (ValueError, RecursionError, OverflowError) as error:
            errors, found, rules = [], [{"path": "", "message": f"cannot be checked: {error}"}], ()
        raise _refusal(errors, found, rules)

    def _first(self, value: Any) -> list[jsonschema_rs.ValidationError]:
        try:
            self._brief.validate(value)
        except jsonschema_rs.ValidationError as error:
            return [error]
        return []


def _refusal(
    errors: list[jsonschema_rs.ValidationError], found: list[SchemaFinding], rules: tuple[str, ...]
) -> InvalidArgument:
    refusal = InvalidArgument("Arguments do not match the tool's schema", {"errors": found})
    refusal.keywords = frozenset(each.kind.name for each in errors)
    refusal.rules = rules
    return refusal


def compile_schema(schema: Schema) -> Validator:
    """Raises `ValueError` with a reason when the schema cannot be used."""
    try:
        return Validator(_compiled(schema), schema, _brief(schema))
    except jsonschema_rs.ValidationError as error:
        raise ValueError(f"at {'/'.join(map(str, error.instance_path)) or 'its root'}: {error.message}") from None
    except jsonschema_rs.ReferencingError as error:
        raise ValueError(str(error)) from None
    except (TypeError, OverflowError, RecursionError, ValueError) as error:
        raise ValueError(f"not a JSON Schema: {error}") from None


def _compiled(schema: Schema) -> jsonschema_rs.Validator:
    make = jsonschema_rs.validator_for if "$schema" in schema else jsonschema_rs.Draft7Validator
    return make(dict(schema), mask="the value", retriever=_refuse_to_fetch)


def _brief(schema: Schema) -> jsonschema_rs.Validator | None:
    try:
        brief = without_branches(schema)
        return None if brief == schema else _compiled(brief)
    except (ValueError, RecursionError, jsonschema_rs.ReferencingError):  # It refers to one of its alternatives.
        return None


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"the reference {uri!r} leaves the schema; only references within it are followed")


def listed_schema(schema: Schema, *, is_own: bool = True) -> Schema:
    """The schema as clients are shown it: MCP takes a missing `$schema` for 2020-12, so draft-07 is spelled out.

    One that was made from type hints, and is not its author's own, leaves out what goes without saying: every model
    that is shown the tool would have to read it.
    """
    draft = schema.get("$schema")
    if draft == DRAFT_2020_12 and not is_own:
        return {key: value for key, value in schema.items() if key != "$schema"}
    return schema if draft is not None else {"$schema": DRAFT_07, **schema}


ANY_OBJECT = compile_schema({"$schema": DRAFT_2020_12, "type": "object"})
"""For what is checked elsewhere."""
