"""How the words of a command become values.

Typer reads them with Pydantic since 0.29, and to import that is a fifth of the start of a server. So plain words are
read here: options by their whole names, with values of the usual types. All other words are left to Typer, and so is
every error: nothing is refused here, and a value is what Typer would have made of it.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import ArgumentInfo, OptionInfo, ParameterInfo

F = TypeVar("F", bound=Callable[..., Any])

_SHOWN = {"help", "metavar", "hidden", "show_default", "rich_help_panel"}
_UNDERSTOOD = {"default", "param_decls", "min", "max", "callback", "parser", *_SHOWN}
"""The attributes of a parameter that may differ from Typer's defaults."""
_USUAL = {kind: vars(kind()) for kind in (ParameterInfo, OptionInfo, ArgumentInfo)}
_NUMBERS = {int: re.compile("-?[0-9]{1,18}"), float: re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")}


class PlainCommand(TyperCommand):
    """A command that reads plain words itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and (args or not self.no_args_is_help):
            try:
                ctx.params.update(plain_values(self, args))
            except NotPlain:
                pass
            else:
                return []
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """A group that reads no options where none is given: words that begin with the name of a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0].startswith("-"):
            return super().parse_args(ctx, args)
        kept = self.params, self.add_help_option
        self.params, self.add_help_option = [], False
        try:
            return super().parse_args(ctx, args)
        finally:
            self.params, self.add_help_option = kept


class Commands(typer.Typer):
    """A group of such commands, and how it is defined."""

    def __init__(self, *, cls: type[Group] = Group, **options: Any) -> None:
        super().__init__(cls=cls, no_args_is_help=True, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        return super().command(name, cls=PlainCommand, **options)


class NotPlain(Exception):
    """The words are Typer's to read."""


def plain_values(command: TyperCommand, words: Sequence[str]) -> dict[str, Any]:
    """The value of each parameter. Raises `NotPlain`."""
    try:
        "".join(words).encode()
    except UnicodeEncodeError:
        raise NotPlain from None
    assert command.callback is not None
    given, function = _given(command.params, words), inspect.unwrap(command.callback)
    hints, signature = get_type_hints(function, include_extras=True), inspect.signature(function)
    read = [
        (name, *_value(hints.get(name), given.get(name, []), signature.parameters[name].default))
        for name in (parameter.name for parameter in command.params)
    ]
    # A function of a parameter may end the command: only now is it sure that all words are plain.
    return {name: value if check is None else _checked(check, value) for name, value, check in read}


def _given(parameters: Sequence[Any], words: Iterable[str]) -> dict[str, list[Any]]:
    """The words of each parameter that has some; True and False for a flag."""
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = {
        name: each for each in parameters if each not in arguments for name in (*each.opts, *each.secondary_opts)
    }
    given: dict[str, list[Any]] = {}
    loose: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            loose += rest
        elif word == "-" or not word.startswith("-"):
            loose.append(word)
        else:
            name, equals, value = word.partition("=")
            option = options.get(name)
            if option is None or not name.startswith("--") or (option.is_flag and equals):
                raise NotPlain
            if not equals and not option.is_flag and (value := next(rest, "-")).startswith("-"):
                raise NotPlain
            given.setdefault(option.name, []).append(name in option.opts if option.is_flag else value)
    for argument in arguments:
        most = {1: 1, -1: len(loose)}.get(argument.nargs)
        if most is None:
            raise NotPlain
        if loose:
            given[argument.name], loose = loose[:most], loose[most:]
    if loose:
        raise NotPlain
    return given


def _value(hint: Any, given: list[Any], default: Any) -> tuple[Any, Callable[..., Any] | None]:
    """A parameter's value, from what was given, or its default; and the function that it is passed to."""
    if isinstance(default, ParameterInfo):
        raise NotPlain
    hint, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    about = next((note for note in notes if isinstance(note, ParameterInfo)), ParameterInfo())
    usual = _USUAL[type(about)]
    if any(value != usual[name] for name, value in vars(about).items() if name not in _UNDERSTOOD):
        raise NotPlain
    if get_origin(hint) in (Union, UnionType):
        hint, *others = (kind for kind in get_args(hint) if kind is not NoneType)
        if others:
            raise NotPlain
    return _read(hint, about, given) if given else _left_out(hint, default), about.callback


def _read(kind: Any, about: ParameterInfo, given: list[Any]) -> Any:
    if get_origin(kind) is list:
        return [_converted(get_args(kind)[0], about, text) for text in given]
    return _converted(kind, about, given[-1])


def _left_out(kind: Any, default: Any) -> Any:
    if default is None or (default == [] and get_origin(kind) is list) or type(default) is kind:
        return default
    raise NotPlain


def _converted(kind: Any, about: ParameterInfo, given: Any) -> Any:
    if about.parser is not None:
        return _checked(about.parser, given)
    if kind is (bool if isinstance(given, bool) else str):
        return given
    if kind is Path and (os.access(given, os.R_OK) or not os.path.exists(given)):
        return Path(given)
    if kind in _NUMBERS and _NUMBERS[kind].fullmatch(given):
        number = kind(given)
        if (about.min is None or number >= about.min) and (about.max is None or number <= about.max):
            return number
    if isinstance(kind, type) and issubclass(kind, Enum):
        for member in kind:
            if member.value == given:
                return member
    raise NotPlain


def _checked(check: Callable[..., Any], value: Any) -> Any:
    """What a function of a parameter makes of a value, if it is a function of the value alone."""
    parameters = inspect.signature(check, eval_str=True).parameters.values()
    kinds = [each.annotation for each in parameters if isinstance(each.annotation, type)]
    if len(parameters) != 1 or any(issubclass(kind, (typer.Context, typer.CallbackParam)) for kind in kinds):
        raise NotPlain
    try:
        return check(value)
    except (ValueError, typer.BadParameter):
        raise NotPlain from None
