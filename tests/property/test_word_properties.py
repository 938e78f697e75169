"""Whatever words a command is given: what is read without Typer is what Typer reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import event, given
from hypothesis import strategies as st
from typer.core import TyperCommand

from dragoman.cli.commands import COMMANDS, load
from dragoman.cli.words import Commands, NotPlain, PlainCommand, plain_values

VALUES = ["", "-", "-1", "0", "1", "5", "5.5", "1e3", " 7", "8_0", "٣", "8001", "true", "a=b", "a17", "15m", "root"]
VALUES += [
    "stdio",
    "STDIO",
    "streamable-http",
    "actions",
    "dragoman.toml",
    "/etc",
    "00000000-0000-4000-8000-00000000000A",
]
OTHERS = ["--", "--help", "--no-such", "-x", "--json=", "--config=my.toml", "--port", "--no-json", "\udcff"]


TEXTS = st.text(st.characters(exclude_characters="\0"), max_size=3)  # No argument of a process has the character.


def functions(command: Any) -> Iterator[Callable[..., Any]]:
    """The functions of a command and of those within it."""
    within = getattr(command, "commands", {})
    for each in within.values():
        yield from functions(each)
    if not within:
        yield inspect.unwrap(command.callback)


ALL = [function for name in COMMANDS for function in functions(load(name))]


def echoing(function: Callable[..., Any]) -> TyperCommand:
    """The command of a function that returns what it is given."""

    @wraps(function)
    def echo(**given: Any) -> dict[str, Any]:
        return given

    app = Commands(add_completion=False)
    app.command()(echo)
    made = typer.main.get_command(app)
    assert isinstance(made, PlainCommand)
    return made


def read_by(parse: Callable[[Any, list[str]], Any], command: TyperCommand, words: list[str]) -> Any:
    """What the function is given, or the kind of error that the words are."""
    context = typer.Context(command, info_name="command")
    try:
        with context.scope(cleanup=False):
            parse(context, list(words))
            return command.invoke(context)
    except (Exception, SystemExit) as error:
        return type(error)


@st.composite
def commands_with_words(draw: st.DrawFn) -> tuple[TyperCommand, list[str]]:
    """A command with its required words, some of its options, and now and then something odd."""
    command = echoing(draw(st.sampled_from(ALL)))
    values = st.sampled_from(VALUES) | TEXTS
    parts = [[draw(values)] for each in command.params if each.param_type_name == "argument" and each.required]
    for option in (each for each in command.params if each.param_type_name == "option"):
        if option.required or draw(st.integers(0, 4)) == 0:
            name = draw(st.sampled_from([*option.opts, *option.secondary_opts]))
            flag = st.just([name])
            with_value = values.flatmap(lambda value, name=name: st.sampled_from([[name, value], [f"{name}={value}"]]))
            parts.append(draw(flag if option.is_flag else with_value))
    if draw(st.integers(0, 3)) == 0:
        parts.append([draw(st.sampled_from(OTHERS) | values)])
    return command, [word for part in draw(st.permutations(parts)) for word in part]


@pytest.fixture(autouse=True, scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("words"))
        Path("my.toml").touch()
        yield


@pytest.mark.slow
@given(commands_with_words())
def test_what_is_read_without_typer_is_what_typer_reads(drawn: tuple[TyperCommand, list[str]]) -> None:
    command, words = drawn
    plain = read_by(lambda context, words: context.params.update(plain_values(command, words)), command, words)
    by_typer = read_by(lambda context, words: TyperCommand.parse_args(command, context, words), command, words)
    event("left to Typer" if plain is NotPlain else "read")
    if plain is not NotPlain:
        assert by_typer == plain
        assert _kinds(by_typer) == _kinds(plain)


def _kinds(values: Any) -> Any:
    """1 equals True and 1.0."""
    return {name: type(value) for name, value in values.items()} if isinstance(values, dict) else values
