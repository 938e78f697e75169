"""`dragoman`: one command to run tools."""

from __future__ import annotations

import gc
import os
import sys

from dragoman.process.collector import UNCOLLECTED
from dragoman.process.exit_codes import FAILED, UNUSABLE
from dragoman.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:  # `--version` does without the module `typing`.
    from typing import NoReturn

_WITH_TARGET = ("serve", "tools", "resources", "prompts", "install")
"""The commands that take TARGET as an argument; `call` takes it as an option."""


def _has_option(words: list[str], option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in words)


def main() -> None:
    """Run the command line."""
    words = sys.argv[1:]
    if words[:1] and words[0] in _WITH_TARGET and _has_option(words, "--target"):
        _refuse("TARGET is an argument here, not an option: leave --target out")
    if words[:1] == ["serve"]:
        _run(words)
    else:
        _answer(words)


def _answer(words: list[str]) -> None:
    """Run a command that says something, where it can be said."""
    if sys.stdout is None:
        _refuse("stdout is closed: there is nowhere to answer to")
    try:
        if words == ["--version"]:
            print(f"dragoman {__version__}", flush=True)  # noqa: T201
        else:
            _run(words)
    except OSError as error:  # What else can go wrong is said where it does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would try again to write what is left.
        _refuse(f"the answer cannot be written: {error.strerror or error}", FAILED)


def _run(words: list[str]) -> None:
    gc.set_threshold(UNCOLLECTED)  # Imports make many objects and hardly any garbage.
    from dragoman.cli.commands import app
    from dragoman.cli.parts import add_commands

    try:
        app(words, obj=add_commands(app, words))
    finally:
        gc.freeze()  # When Python ends, it would look through everything once more.


def _refuse(line: str, code: int = UNUSABLE) -> NoReturn:
    from dragoman.cli.output import complain  # Typer comes with it, which `--version` does without.

    complain(line)
    sys.exit(code)
