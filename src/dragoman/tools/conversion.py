"""Python types as JSON Schemas, and JSON as what those types promise."""

from __future__ import annotations

import functools
import operator
import re
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from dragoman.errors import InternalFailure, InvalidArgument
from dragoman.tools.schema import DRAFT_2020_12

_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")


def with_meta(hint: Any) -> Any:
    """Understand `Annotated[int, "what it is for"]` and the annotations of other libraries, Pydantic's among them."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, map(with_meta, typing.get_args(hint)))
    if origin in (list, dict, set, frozenset, tuple):
        return origin[tuple(map(with_meta, typing.get_args(hint)))]
    if origin is not Annotated:
        return hint
    base, *notes = typing.get_args(hint)
    base = with_meta(base)
    facts: dict[str, Any] = {}
    kept: list[Any] = []
    for note in notes:
        if isinstance(note, msgspec.Meta):
            kept.append(note)
        elif isinstance(note, str):
            facts["description"] = note
        else:
            for part in (note, *getattr(note, "metadata", ())):
                facts |= {key: value for key in _CONSTRAINTS if (value := getattr(part, key, None)) is not None}
            description = getattr(note, "description", None) or getattr(note, "documentation", None)
            if description:
                facts["description"] = description
    if facts:
        kept.append(msgspec.Meta(**facts))
    return Annotated[(base, *kept)] if kept else base


def object_schema(kind: Any) -> dict[str, Any] | None:
    """The schema of `kind` with its root in place, or None when the root is not an object."""
    borrowed: dict[str, Any] = {}

    def of_model(model: type) -> dict[str, Any]:
        describe = getattr(model, "model_json_schema", None)
        if describe is None:
            raise TypeError(f"{model.__name__} has no JSON form")
        # Under a name of its own: two models may contain different models of one name.
        schema: dict[str, Any] = describe()
        prefix = ""
        defined = schema.get("$defs", {})
        if any(borrowed.get(key, value) != value for key, value in defined.items()):
            prefix = f"{model.__name__}."
            schema = describe(ref_template=f"#/$defs/{prefix}{{model}}")
            defined = schema.get("$defs", {})
        schema.pop("$defs", None)
        borrowed.update({f"{prefix}{key}": value for key, value in defined.items()})
        return schema

    (schema,), definitions = msgspec.json.schema_components(
        (kind,), schema_hook=of_model, ref_template="#/$defs/{name}"
    )
    if "$ref" in schema:
        schema = definitions.pop(schema["$ref"].rsplit("/", 1)[1])
    if schema.get("type") != "object":
        return None
    schema.pop("title", None)
    if definitions or borrowed:
        schema["$defs"] = {**definitions, **borrowed}
    return {"$schema": DRAFT_2020_12, **schema}


_PLAIN = frozenset({str, bool, dict, list, Any, type(None), object})


def is_plain(hint: Any) -> bool:
    """Whether JSON's own value is already what the handler expects."""
    if typing.get_origin(hint) is Annotated:
        return is_plain(typing.get_args(hint)[0])
    origin = typing.get_origin(hint)
    if origin in (list, dict, typing.Union, types.UnionType):
        return all(map(is_plain, typing.get_args(hint)))
    return hint in _PLAIN


def _whole(value: Any) -> Any:
    """`value` with every float that has no fraction as an int."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list):
        return list(map(_whole, value))
    return {key: _whole(item) for key, item in value.items()} if isinstance(value, dict) else value


class _Unfit(ValueError):
    """What a model says is wrong, without the value."""


def converter(arguments: type[Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What turns validated JSON into the values that the fields of `arguments` promise; raises `InvalidArgument`."""

    def from_json(kind: type, value: Any) -> Any:
        validate = getattr(kind, "model_validate", None)
        if validate is None:
            raise NotImplementedError(kind.__name__)
        try:
            return validate(value)
        except ValueError as error:
            describe = getattr(error, "errors", None)
            if describe is None:
                raise
            # Pydantic's own text repeats the value.
            first = describe(include_url=False, include_input=False, include_context=False)[0]
            raise _Unfit(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def convert(values: dict[str, Any]) -> dict[str, Any]:
        try:
            made = msgspec.convert(values, arguments, dec_hook=from_json)
        except msgspec.ValidationError:
            # JSON has one kind of number: 1.0 is an integer there, and the schema let it through.
            try:
                made = msgspec.convert(_whole(values), arguments, dec_hook=from_json)
            except msgspec.ValidationError as error:
                raise InvalidArgument("Arguments do not match the tool's schema", {"errors": [_said(error)]}) from None
        except Exception as error:  # The author's own types may do anything while they are made.
            raise InternalFailure("The tool failed", {"reason": "handler_exception"}) from error
        return {key: getattr(made, key) for key in values}

    return convert


def _said(error: msgspec.ValidationError) -> dict[str, str]:
    """Where, and what: the way a validator would say it, and without the value."""
    message, _, path = str(error).partition(" - at `$.")
    if message.startswith("Invalid enum value"):
        message = message.partition(" '")[0]
    if error.__cause__ is not None and not isinstance(error.__cause__, _Unfit):
        message = "cannot be converted"  # An exception of the author's own, whose text is not for clients.
    steps = re.sub(r"\[(\d+)\]", r"/\1", path.rstrip("`").replace("[...]", "")).replace(".", "/")
    return {"path": f"/{steps}" if steps else "", "message": message}
