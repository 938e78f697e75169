"""Which words are read without Typer, and which are left to it."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

from dragoman.cli.words import Commands, NotPlain, plain_values


class Colour(Enum):
    RED = "red"


def paint(
    name: str,
    colour: Annotated[Colour, typer.Option()] = Colour.RED,
    coats: Annotated[int, typer.Option(min=1, max=9)] = 2,
    litres: Annotated[float, typer.Option(min=0.5, max=9.5)] = 1.0,
    on: Annotated[list[Path] | None, typer.Option()] = None,
    is_dry: Annotated[bool, typer.Option("--dry/--wet")] = False,
    area: Annotated[int | None, typer.Option(parser=lambda text: int(text) ** 2, metavar="SIDE")] = None,
) -> None:
    """Paint something."""


SEEN: list[str] = []


def guard(where: Annotated[str, typer.Option(callback=SEEN.append)], hours: Annotated[int, typer.Option()] = 1) -> None:
    """Guard something."""


PAINTED: dict[str, Any] = {
    "name": "wall",
    "colour": Colour.RED,
    "coats": 2,
    "litres": 1.0,
    "on": None,
    "is_dry": False,
    "area": None,
}


def read(*words: str) -> dict[str, Any]:
    app = Commands(add_completion=False)
    app.command()(paint)
    return plain_values(get_command(app), words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], {}),
        (["--colour", "red", "--coats=9", "--litres", "0.5"], {"coats": 9, "litres": 0.5}),
        (["--on", "a", "--on=b"], {"on": [Path("a"), Path("b")]}),
        (["--dry"], {"is_dry": True}),
        (["--dry", "--wet"], {"is_dry": False}),
        (["--coats", "3", "--coats", "4"], {"coats": 4}),
        (["--area", "3"], {"area": 9}),
    ],
)
def test_plain_words_are_read(words: list[str], given: dict[str, Any]) -> None:
    assert read("wall", *words) == read(*words, "--", "wall") == {**PAINTED, **given}


def test_no_function_of_a_parameter_is_called_for_words_that_are_left_to_typer() -> None:
    app = Commands(add_completion=False)
    app.command()(guard)
    with pytest.raises(NotPlain):
        plain_values(get_command(app), ["--where", "here", "--hours", "many"])  # type: ignore[arg-type]
    assert SEEN == []


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["wall", "floor"],
        ["wall", "-x"],
        ["wall", "--help"],
        ["wall", "--colour", "blue"],
        ["wall", "--colour"],
        ["wall", "--coats", "0"],
        ["wall", "--coats", "10"],
        ["wall", "--coats", "-1"],
        ["wall", "--coats=2.0"],
        ["wall", "--litres=0.4"],
        ["wall", "--litres=9.6"],
        ["wall", "--litres=1e0"],
        ["wall", "--dry=yes"],
        ["wall", "--area=big"],
        ["\udcff"],
    ],
)
def test_other_words_are_left_to_typer(words: list[str]) -> None:
    with pytest.raises(NotPlain):
        read(*words)


def _asks(context: typer.Context) -> None: ...


def with_context(value: Annotated[str, typer.Option(callback=_asks)] = "") -> None: ...


def with_variable(value: Annotated[str, typer.Option(envvar="VALUE")] = "") -> None: ...


def with_a_folder(value: Annotated[Path | None, typer.Option(exists=True)] = None) -> None: ...


def with_a_pair(value: tuple[int, int] = (1, 2)) -> None: ...


def with_the_older_notation(value: str = typer.Option("")) -> None: ...


@pytest.mark.parametrize("function", [with_context, with_variable, with_a_folder, with_a_pair, with_the_older_notation])
def test_a_command_with_an_unusual_parameter_is_left_to_typer(function: Any) -> None:
    app = Commands(add_completion=False)
    app.command()(function)
    with pytest.raises(NotPlain):
        plain_values(get_command(app), [])  # type: ignore[arg-type]
