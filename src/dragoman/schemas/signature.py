"""What a function's signature says about the tool that it becomes."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from dragoman.errors import InvalidTool
from dragoman.schemas.conversion import converter, is_plain, object_schema, with_meta
from dragoman.schemas.defaults import read_default
from dragoman.schemas.returns import Returns, read_return


class Signature(msgspec.Struct, frozen=True):
    """What a function's type hints say about the tool that it becomes."""

    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    returns: Returns
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None
    arguments: dict[str, Any]
    """What each is that is not given; `...` where it must be."""
    defaults: dict[str, Callable[[], Any]]
    """Those that the function does not supply itself."""
    others: tuple[tuple[inspect.Parameter, Any], ...]
    """The parameters that are no arguments, with their hints."""


def read_signature(
    function: Callable[..., Any],
    name: str,
    is_argument: Callable[[Any], bool],
    is_content: Callable[[type], bool],
    *,
    has_schema: bool = False,
) -> Signature:
    """Schemas and argument conversion from type hints; raises `InvalidTool`, naming the parameter.

    `is_argument` tells by its hint whether a parameter is an argument of the tool, and may raise `TypeError`.
    `is_content` tells whether values of a type are content blocks.
    """
    if (problem := _problem(function)) is not None:
        raise InvalidTool(name, [("", problem)])
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
    except Exception as error:
        raise InvalidTool(name, [("", f"its type hints cannot be read: {error}")]) from error
    fields: list[Any] = []
    arguments: dict[str, Any] = {}
    defaults: dict[str, Callable[[], Any]] = {}
    others: list[tuple[inspect.Parameter, Any]] = []
    for parameter in parameters.values():
        hint = hints.get(parameter.name, Any)
        _check(name, parameter, is_first=not fields and not others, is_hinted=parameter.name in hints)
        try:
            if not is_argument(hint):
                others.append((parameter, hint))
                continue
        except TypeError as error:
            raise InvalidTool(name, [(parameter.name, str(error))]) from None
        given, hint, make = read_default(name, parameter, hint)
        arguments[parameter.name] = ... if given.default is given.empty else given.default
        if make is not None:
            defaults[parameter.name] = make
        fields.append(_field(given, _with_meta(name, parameter, hint)))
    schema, convert = _conversion(name, fields, has_schema=has_schema)
    return Signature(schema, *read_return(hints.get("return"), is_content), convert, arguments, defaults, tuple(others))


def _conversion(
    name: str, fields: list[Any], *, has_schema: bool
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]] | None]:
    """The input schema, and how arguments that fit it become those of the function; None: they are that already."""
    try:
        arguments = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True)
        input_schema = object_schema(arguments)
    except (TypeError, ValueError, NameError, RuntimeError) as error:  # Pydantic's user errors are `RuntimeError`s.
        if has_schema:
            return {}, None
        place = next((field[0] for field in fields if not _has_schema(field[1])), "")
        raise InvalidTool(name, [(place, f"{error}; annotate it otherwise, or pass input_schema")]) from error
    return input_schema, None if all(is_plain(field[1]) for field in fields) else converter(arguments)


def _check(name: str, parameter: inspect.Parameter, *, is_first: bool, is_hinted: bool) -> None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise InvalidTool(name, [(parameter.name, "a tool's parameters must be passable by name, one by one")])
    if parameter.name in ("self", "cls") and is_first and not is_hinted:
        raise InvalidTool(name, [(parameter.name, _METHOD)])


_METHOD = "a method has no object to be called on; decorate it where there is one: tool(thing.method)"


def _problem(function: Any) -> str | None:
    """Why no tool can be made of something, and what to do instead."""
    if isinstance(function, staticmethod | classmethod):
        kind = type(function).__name__
        return f"@tool is above @{kind}; " + ("put it below" if kind == "staticmethod" else "use tool(Class.method)")
    if inspect.isclass(function):
        return "it is a class; decorate a function that returns one"
    if not callable(function):
        return "it is not a function"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "it yields, and a call has one result; return a list, and tell progress with ToolContext.progress"
    if isinstance(function, functools.partial) or not hasattr(function, "__name__"):
        return f"it is a {type(function).__name__}; wrap it in a function with type hints"
    return None


def _with_meta(name: str, parameter: inspect.Parameter, hint: Any) -> Any:
    try:
        return with_meta(hint)
    except Exception as error:  # Other libraries' annotations may say anything.
        raise InvalidTool(name, [(parameter.name, f"its type hint cannot be used: {error}")]) from error


def _has_schema(hint: Any) -> bool:
    try:
        object_schema(msgspec.defstruct("Argument", [("value", hint)]))
    except (TypeError, ValueError, NameError, RuntimeError):
        return False
    return True


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
