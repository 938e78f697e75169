"""What a function's signature says about the tool that it becomes."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from dragoman.errors import InvalidTool
from dragoman.tools.content import is_content_type
from dragoman.tools.conversion import converter, is_plain, object_schema, with_meta
from dragoman.tools.questions import Question, make_question, marker_in


class Signature(msgspec.Struct, frozen=True):
    """What a function's type hints say about the tool that it becomes."""

    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    context_parameter: str | None
    convert: Callable[[dict[str, Any]], dict[str, Any]] | None
    questions: tuple[Question, ...] = ()


def read_signature(
    function: Callable[..., Any], context_type: type, name: str, *, has_schema: bool = False
) -> Signature:
    """Schemas and argument conversion from type hints; raises `InvalidTool`, naming the parameter."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise InvalidTool(name, [("", f"its type hints cannot be read: {error}")]) from error
    fields: list[Any] = []
    asked: list[tuple[inspect.Parameter, Any]] = []
    context_parameter = None
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidTool(name, [(parameter.name, "a tool's parameters must be passable by name, one by one")])
        if hint is context_type:
            context_parameter = parameter.name
            continue
        if _is_asked(name, parameter, hint):
            asked.append((parameter, hint))
            continue
        fields.append(_field(parameter, with_meta(hint)))
    questions = _questions(name, asked, function)
    try:
        arguments = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True)
        input_schema = object_schema(arguments)
    except (TypeError, ValueError, NameError) as error:
        if has_schema:
            return Signature({}, _output_schema(hints.get("return")), context_parameter, None, questions)
        place = next((field[0] for field in fields if not _has_schema(field[1])), "")
        raise InvalidTool(name, [(place, f"{error}; annotate it otherwise, or pass input_schema")]) from error
    assert input_schema is not None
    plain = all(is_plain(field[1]) for field in fields)
    return Signature(
        input_schema,
        _output_schema(hints.get("return")),
        context_parameter,
        None if plain else converter(arguments),
        questions,
    )


def _is_asked(name: str, parameter: inspect.Parameter, hint: Any) -> bool:
    try:
        return marker_in(hint) is not None
    except TypeError as error:
        raise InvalidTool(name, [(parameter.name, str(error))]) from None


def _questions(
    name: str, asked: list[tuple[inspect.Parameter, Any]], function: Callable[..., Any]
) -> tuple[Question, ...]:
    names = {parameter.name for parameter, _ in asked}
    defaults = {
        parameter.name: ... if parameter.default is parameter.empty else parameter.default
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in names
    }
    questions: list[Question] = []
    for parameter, hint in asked:
        marker = marker_in(hint)
        assert marker is not None
        try:
            question = make_question(parameter, hint, marker, [each.name for each in questions], defaults)
        except (TypeError, ValueError, NameError) as error:
            raise InvalidTool(name, [(parameter.name, str(error))]) from error
        questions.append(question)
    return tuple(questions)


def _has_schema(hint: Any) -> bool:
    try:
        object_schema(msgspec.defstruct("Argument", [("value", hint)]))
    except (TypeError, ValueError, NameError):
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


def _is_content(hint: Any) -> bool:
    """Whether a result of this type is content blocks, which are sent as they are and have no schema."""
    if isinstance(hint, type) and is_content_type(hint):
        return True
    return any(map(_is_content, typing.get_args(hint)))


def _output_schema(hint: Any) -> dict[str, Any] | None:
    if hint is None or hint is Any or hint is type(None) or _is_content(hint):
        return None
    try:
        return object_schema(hint)
    except (TypeError, ValueError, NameError, KeyError):
        return None  # A result is free to have no schema; what it is shows when it is sent.
