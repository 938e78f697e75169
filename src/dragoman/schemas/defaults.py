"""Defaults that are fields: `= Field(3, ge=1)` of Pydantic, and `field(default=…)` of msgspec and dataclasses.

They mean what `Annotated[int, Field(ge=1)] = 3` means. Python would pass the field itself to the function, so the tool
supplies the value.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from dragoman.errors import InvalidTool

_MSGSPEC_FIELD: Any = type(msgspec.field(default=None))
_ALIASES = ("alias", "validation_alias", "serialization_alias")


def read_default(
    tool: str, parameter: inspect.Parameter, hint: Any
) -> tuple[inspect.Parameter, Any, Callable[[], Any] | None]:
    """The parameter with its own default in place of a field's, its hint, and how to make a default that it lacks.

    Raises `InvalidTool` for a field that gives the parameter another name.
    """
    field = parameter.default
    if _is_field_info(field):
        hint = Annotated[hint, field]
    notes = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    fields = [each for each in notes if _is_field_info(each)]
    if any(getattr(each, alias) is not None for each in fields for alias in _ALIASES) or (
        isinstance(field, _MSGSPEC_FIELD) and field.name is not None
    ):
        raise InvalidTool(tool, [(parameter.name, "a field's alias is not supported; rename the parameter")])
    if parameter.default is parameter.empty:
        # `Annotated[int, Field(3)]`: the last one counts.
        field = next((each for each in reversed(fields) if not each.is_required()), field)
    missing: Any
    if _is_field_info(field):
        missing = field.default if field.is_required() else object()
    elif isinstance(field, _MSGSPEC_FIELD):
        missing = msgspec.NODEFAULT
    elif isinstance(field, dataclasses.Field):
        missing = dataclasses.MISSING
    else:
        return parameter, hint, None
    make: Callable[[], Any] = field.default_factory
    if make is not missing and make is not None:
        # A default that is made anew for each call cannot be shown in the schema.
        return parameter.replace(default=object()), hint, make
    value: Any = field.default
    if value is missing:
        return parameter.replace(default=parameter.empty), hint, None
    return parameter.replace(default=value), hint, lambda: copy.deepcopy(value)


def _is_field_info(value: Any) -> bool:
    """Without an import of Pydantic, which is loaded if there is such a value."""
    return any(each.__module__ == "pydantic.fields" and each.__name__ == "FieldInfo" for each in type(value).__mro__)
