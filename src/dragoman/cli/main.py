"""`dragoman`: one command to run tools."""

from __future__ import annotations

import os
import sys

import typer

from dragoman import __version__
from dragoman.cli import (
    actions,
    agents,
    audit,
    config,
    jobs,
    keys,
    knowledge,
    ledger,
    messages,
    models,
    offers,
    tasks,
    tools,
)
from dragoman.cli.call import call
from dragoman.cli.doctor import doctor
from dragoman.cli.guards import guards
from dragoman.cli.install import install
from dragoman.cli.output import complain
from dragoman.cli.parts import add_commands
from dragoman.cli.registry import registry
from dragoman.cli.serve import serve
from dragoman.cli.signing import token
from dragoman.cli.top import top
from dragoman.process.exit_codes import FAILED, UNUSABLE

EXIT_CODES = (
    "Exit codes: 0 it went well, 1 what was asked for failed, 2 it could not be tried (usage, settings, target), "
    "3 calls were abandoned, 130 a call was interrupted."
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dragoman {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Say which version."),
) -> None:
    pass


def _app() -> typer.Typer:
    made = typer.Typer(
        name="dragoman",
        help="A governed MCP runtime: every tool call ordered, limited, timed and recorded.",
        epilog=EXIT_CODES,
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
    )
    made.callback()(_root)
    made.command()(serve)
    return made


app = _app()
app.command()(call)
app.add_typer(tools.app, name="tools")
app.add_typer(offers.resources, name="resources")
app.add_typer(offers.prompts, name="prompts")
app.add_typer(agents.app, name="agents")
app.add_typer(messages.app, name="messages")
app.add_typer(ledger.app, name="ledger")
app.add_typer(tasks.app, name="tasks")
app.add_typer(knowledge.app, name="knowledge")
app.add_typer(models.app, name="models")
app.add_typer(keys.app, name="keys")
app.command()(token)
app.add_typer(actions.app, name="actions")
app.add_typer(audit.app, name="audit")
app.add_typer(jobs.app, name="jobs")
app.command()(registry)
app.command()(top)
app.add_typer(config.app, name="config")
app.command()(guards)
app.command()(install)
app.command()(doctor)


_WITH_TARGET = ("serve", "tools", "resources", "prompts", "install")
"""The commands that take TARGET as an argument; `call` takes it as an option."""


def _has_option(words: list[str], option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in words)


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] and sys.argv[1] in _WITH_TARGET and _has_option(sys.argv, "--target"):
        complain("TARGET is an argument here, not an option: leave --target out")
        sys.exit(UNUSABLE)
    if sys.argv[1:2] == ["serve"]:
        # A client waits while its server starts, and making the other commands would take ten milliseconds.
        _app()()
    else:
        _answer()


def _answer() -> None:
    """Run a command that says something, where it can be said."""
    if sys.stdout is None:
        complain("stdout is closed: there is nowhere to answer to")
        sys.exit(UNUSABLE)
    try:
        words = sys.argv[1:]
        app(words, obj=add_commands(app, words))
    except OSError as error:  # What else can go wrong is said where it does.
        complain(f"the answer cannot be written: {error.strerror or error}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would try again to write what is left.
        sys.exit(FAILED)
