"""Python types as JSON Schemas, and JSON as what those types promise."""

from __future__ import annotations

import contextlib
import functools
import operator
import re
import sys
import types
import typing
from collections.abc import (
    Callable,
    Collection,
    Mapping,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
    Set,
)
from pathlib import PurePath
from typing import Annotated, Any, Literal

import msgspec

from dragoman.errors import InternalFailure, InvalidArgument
from dragoman.schemas.schema import DRAFT_2020_12

_CONTAINERS = frozenset(
    [list, dict, set, frozenset, tuple, Collection, Sequence, MutableSequence, Set, MutableSet, Mapping, MutableMapping]
)
_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")


class _Adapted(type):
    """A type that stands for a hint that the converter cannot take: `members` of a union, or Pydantic's `adapter`.

    The values are not instances of it, though the converter asks.
    """

    members: tuple[Any, ...] = ()
    adapter: Any = None

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def with_meta(hint: Any) -> Any:
    """The hint as the converter takes it.

    Understands `Annotated[int, "what it is for"]` and the annotations of other libraries, Pydantic's among them. Of
    types that the converter cannot tell apart in a union, the first that a value can be converted to counts.
    """
    if isinstance(hint, typing.NewType):
        return with_meta(hint.__supertype__)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        members = tuple(map(with_meta, typing.get_args(hint)))
        union = functools.reduce(operator.or_, members)
        try:
            msgspec.json.Decoder(union)
        except TypeError:
            return _Adapted("Union", (), {"members": members})
        return union
    if _is_pydantic(hint):
        return _adapted_by_pydantic(hint)
    if origin in _CONTAINERS:
        return origin[tuple(map(with_meta, typing.get_args(hint)))]
    if origin is not Annotated:
        return hint
    base, *notes = typing.get_args(hint)
    if any(map(_needs_pydantic, notes)):
        return _adapted_by_pydantic(hint)
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
            facts |= {key: value for key in ("title", "examples") if (value := getattr(note, key, None))}
            extra = getattr(note, "json_schema_extra", None)
            if isinstance(extra, dict):
                facts["extra_json_schema"] = extra
    if facts:
        kept.append(msgspec.Meta(**facts))
    return Annotated[(base, *kept)] if kept else base


def _needs_pydantic(note: Any) -> bool:
    """Whether a note of Pydantic's says more than `msgspec.Meta` can: a validator, a discriminator, strictness."""
    if not type(note).__module__.startswith("pydantic"):
        return False
    if hasattr(note, "is_required"):
        return note.discriminator is not None or any(map(_needs_pydantic, note.metadata))
    said: dict[str, Any] = getattr(note, "__dict__", {"": note})
    return any(value is not None for key, value in said.items() if key != "pattern")


def _is_pydantic(kind: Any) -> bool:
    """Whether Pydantic knows how to convert to a type that is not a model: its dataclasses, URLs, secrets."""
    is_own = hasattr(kind, "__pydantic_validator__") or hasattr(kind, "__get_pydantic_core_schema__")
    return isinstance(kind, type) and is_own and not hasattr(kind, "model_validate")


def _adapted_by_pydantic(hint: Any) -> Any:
    # Whoever wrote the hint has imported Pydantic, and nobody else needs it.
    return _Adapted("Adapted", (), {"adapter": sys.modules["pydantic"].TypeAdapter(hint)})


def object_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of the arguments that a Struct describes."""
    schema, definitions = json_schema(kind, "validation")
    schema.pop("title", None)
    if definitions:
        schema["$defs"] = definitions
    return {"$schema": DRAFT_2020_12, **schema}


def json_schema(kind: Any, mode: Literal["validation", "serialization"]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of `kind` with its root in place, and the definitions that it refers to.

    A Pydantic model may be written otherwise than it is read: `mode` says which. Raises `TypeError` or `ValueError` for
    a type without a JSON form.
    """
    borrowed: dict[str, Any] = {}

    def of_model(model: type) -> dict[str, Any]:
        if not isinstance(model, type):
            raise TypeError(f"{model} has no JSON form")
        if issubclass(model, PurePath):
            return {"type": "string", "format": "path"}
        if isinstance(model, _Adapted) and model.members:
            schemas, definitions = msgspec.json.schema_components(
                model.members, schema_hook=of_model, ref_template="#/$defs/{name}"
            )
            borrowed.update(definitions)
            return {"anyOf": list(schemas)}
        describe = model.adapter.json_schema if isinstance(model, _Adapted) else _describe_of(model)
        # Under a name of its own: two models may contain different models of one name.
        options = {} if mode == "validation" else {"mode": mode}
        schema: dict[str, Any] = describe(**options)
        prefix = ""
        defined = schema.get("$defs", {})
        if any(borrowed.get(key, value) != value for key, value in defined.items()):
            prefix = f"{model.__name__}."
            schema = describe(ref_template=f"#/$defs/{prefix}{{model}}", **options)
            defined = schema.get("$defs", {})
        schema.pop("$defs", None)
        borrowed.update({f"{prefix}{key}": value for key, value in defined.items()})
        return schema

    (schema,), definitions = msgspec.json.schema_components(
        (kind,), schema_hook=of_model, ref_template="#/$defs/{name}"
    )
    definitions |= borrowed
    if (name := schema.get("$ref", "").rpartition("/")[2]) in definitions:
        schema = dict(definitions[name])
        if msgspec.json.encode(f"#/$defs/{name}") not in msgspec.json.encode(definitions):
            del definitions[name]  # Unlike a type that contains itself, it is not needed under its name any more.
    return schema, definitions


def _describe_of(model: type) -> Callable[..., dict[str, Any]]:
    describe: Callable[..., dict[str, Any]] | None = getattr(model, "model_json_schema", None)
    if describe is None:
        raise TypeError(f"{model.__name__} has no JSON form")
    return describe


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


def _from_json(kind: type, value: Any) -> Any:
    if issubclass(kind, PurePath):
        if not isinstance(value, str):
            raise _Unfit("Expected `str`")
        return kind(value)
    if isinstance(kind, _Adapted) and kind.members:
        return _first_that_fits(kind.members, value)
    validate = kind.adapter.validate_python if isinstance(kind, _Adapted) else getattr(kind, "model_validate", None)
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
        raise _Unfit(": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))) from None


# In JSON, the names of members are strings whatever the keys of the `dict` are.
_convert = functools.partial(msgspec.convert, str_keys=True, dec_hook=_from_json)


def _first_that_fits(members: tuple[Any, ...], value: Any) -> Any:
    for member in members:
        with contextlib.suppress(msgspec.ValidationError):
            return _convert(value, member)
    raise _Unfit("fits none of the types that it may have")


def converter(arguments: type[Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What turns validated JSON into the values that the fields of `arguments` promise; raises `InvalidArgument`."""

    def convert(values: dict[str, Any]) -> dict[str, Any]:
        try:
            try:
                made = _convert(values, arguments)
            except msgspec.ValidationError:
                # JSON has one kind of number: 1.0 is an integer there, and the schema let it through.
                made = _convert(_whole(values), arguments)
        except msgspec.ValidationError as error:
            raise InvalidArgument("Arguments do not match the tool's schema", {"errors": [_said(error)]}) from None
        except Exception as error:  # The author's own types may do anything while they are made.
            raise InternalFailure("The tool failed", {"reason": "handler_exception"}) from error
        return {key: getattr(made, key) for key in values}

    return convert


def _said(error: msgspec.ValidationError) -> dict[str, str]:
    """Where, and what: the way a validator would say it, and without the value."""
    said = str(error).replace(" - at `key` in `$", " for a key - at `$")
    message, _, path = said.partition(" - at `$.")
    if message.startswith("Invalid enum value"):
        message = message.partition(" '")[0]
    if error.__cause__ is not None and not isinstance(error.__cause__, _Unfit):
        message = "cannot be converted"  # An exception of the author's own, whose text is not for clients.
    steps = re.sub(r"\[(\d+)\]", r"/\1", path.rstrip("`").replace("[...]", "")).replace(".", "/")
    return {"path": f"/{steps}" if steps else "", "message": message}
