"""JSON Schemas: compiled once, when a tool is registered, and never while a call waits.

`$schema` decides the draft. Without it a schema that was handed in is draft-07, as the Foundation has it, and one that
was made from Python types is 2020-12. References that would have to be fetched are refused.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

import jsonschema_rs
import msgspec

from dragoman.errors import InvalidArgument, InvalidTool

Schema: TypeAlias = Mapping[str, Any]
DRAFT_07 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"
_MOST_ERRORS = 20


class Validator:
    """A compiled schema."""

    __slots__ = ("_compiled",)

    def __init__(self, compiled: jsonschema_rs.Validator) -> None:
        self._compiled = compiled

    def check(self, value: Any) -> None:
        """Raise `InvalidArgument` with what is wrong and where; values are not repeated, they may be secret or huge."""
        try:
            if self._compiled.is_valid(value):
                return
            found = [
                {"path": "/".join(("", *map(str, error.instance_path))), "message": error.message}
                for error, _ in zip(self._compiled.iter_errors(value), range(_MOST_ERRORS), strict=False)
            ]
        except (ValueError, RecursionError, OverflowError) as error:
            found = [{"path": "", "message": f"cannot be checked: {error}"}]
        raise InvalidArgument("Arguments do not match the tool's schema", {"errors": found})


def compile_schema(schema: Schema) -> Validator:
    """Raises `ValueError` with a reason when the schema cannot be used."""
    make = jsonschema_rs.validator_for if "$schema" in schema else jsonschema_rs.Draft7Validator
    try:
        return Validator(make(dict(schema), mask="the value", retriever=_refuse_to_fetch))
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise ValueError(getattr(error, "message", None) or str(error)) from None
    except (TypeError, OverflowError, RecursionError, ValueError) as error:
        raise ValueError(f"not a JSON Schema: {error}") from None


def _refuse_to_fetch(uri: str) -> Any:
    raise ValueError(f"the reference {uri!r} leaves the schema; only references within it are followed")


def listed_schema(schema: Schema) -> Schema:
    """The schema as clients are shown it: MCP takes a missing `$schema` for 2020-12, so draft-07 is spelled out."""
    draft = schema.get("$schema")
    if draft == DRAFT_2020_12:
        return {key: value for key, value in schema.items() if key != "$schema"}
    return schema if draft is not None else {"$schema": DRAFT_07, **schema}


class Signature(msgspec.Struct, frozen=True):
    """What a function's type hints say about the tool that it becomes."""

    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    context_parameter: str | None
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None


def read_signature(function: Callable[..., Any], context_type: type, name: str) -> Signature:
    """Schemas and argument conversion from type hints; raises `InvalidTool`, naming the parameter."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise InvalidTool(name, [("", f"its type hints cannot be read: {error}")]) from error
    fields: list[Any] = []
    context_parameter = None
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if hint is context_type:
            context_parameter = parameter.name
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidTool(name, [(parameter.name, "a tool's parameters must be passable by name, one by one")])
        fields.append(_field(parameter, _with_meta(hint)))
    try:
        arguments = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True)
        input_schema = _object_schema(arguments)
    except (TypeError, ValueError, NameError) as error:
        raise InvalidTool(name, [("", f"{error}; annotate it otherwise, or pass input_schema")]) from error
    assert input_schema is not None
    plain = all(_is_plain(field[1]) for field in fields)
    return Signature(
        input_schema,
        _output_schema(hints.get("return")),
        context_parameter,
        None if plain else _converter(arguments),
    )


def _field(parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.default is parameter.empty:
        return (parameter.name, hint)
    try:
        msgspec.json.encode(parameter.default)
        mutable = isinstance(parameter.default, list | dict | set | bytearray)
    except (TypeError, ValueError, RecursionError):
        mutable = True
    # The function supplies its own default; the field's only makes the parameter optional and documents it.
    default = msgspec.field(default_factory=lambda: parameter.default) if mutable else parameter.default
    return (parameter.name, hint, default)


_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")


def _with_meta(hint: Any) -> Any:
    """Understand `Annotated[int, "what it is for"]` and the annotations of other libraries, Pydantic's among them."""
    if typing.get_origin(hint) is not Annotated:
        return hint
    base, *notes = typing.get_args(hint)
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


def _object_schema(kind: Any) -> dict[str, Any] | None:
    """The schema of `kind` with its root in place, or None when the root is not an object."""
    borrowed: dict[str, Any] = {}

    def of_model(model: type) -> dict[str, Any]:
        describe = getattr(model, "model_json_schema", None)
        if describe is None:
            raise TypeError(f"{model.__name__} has no JSON form")
        schema: dict[str, Any] = describe()
        borrowed.update(schema.pop("$defs", {}))
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


def _output_schema(hint: Any) -> dict[str, Any] | None:
    if hint is None or hint is Any or hint is type(None):
        return None
    try:
        return _object_schema(hint)
    except (TypeError, ValueError, NameError, KeyError):
        return None  # A result is free to have no schema; what it is shows when it is sent.


_PLAIN = frozenset({str, bool, dict, list, Any, type(None), object})


def _is_plain(hint: Any) -> bool:
    """Whether JSON's own value is already what the handler expects."""
    if typing.get_origin(hint) is Annotated:
        return _is_plain(typing.get_args(hint)[0])
    origin = typing.get_origin(hint)
    if origin in (list, dict, typing.Union, types.UnionType):
        return all(map(_is_plain, typing.get_args(hint)))
    return hint in _PLAIN


def _converter(arguments: type[Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def from_json(kind: type, value: Any) -> Any:
        validate = getattr(kind, "model_validate", None)
        if validate is None:
            raise NotImplementedError(kind.__name__)
        return validate(value)

    def convert(values: dict[str, Any]) -> dict[str, Any]:
        try:
            made = msgspec.convert(values, arguments, dec_hook=from_json)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `$.")
            where = "/" + path.rstrip("`").replace(".", "/") if path else ""
            raise InvalidArgument(
                "Arguments do not match the tool's schema", {"errors": [{"path": where, "message": message}]}
            ) from None
        return {key: getattr(made, key) for key in values}

    return convert
