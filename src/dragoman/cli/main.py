"""`dragoman`: one command to run tools."""

from __future__ import annotations

import typer

from dragoman import __version__
from dragoman.cli import config, tools
from dragoman.cli.call import call
from dragoman.cli.doctor import doctor
from dragoman.cli.install import install
from dragoman.cli.serve import serve

EXIT_CODES = (
    "Exit codes: 0 it went well, 1 what was asked for failed, 2 it could not be tried (usage, settings, target), "
    "3 calls were abandoned."
)

app = typer.Typer(
    name="dragoman",
    help="A governed MCP runtime: every tool call ordered, limited, timed and recorded.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dragoman {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Say which version."),
) -> None:
    pass


app.command()(serve)
app.command()(call)
app.add_typer(tools.app, name="tools")
app.add_typer(config.app, name="config")
app.command()(install)
app.command()(doctor)


def main() -> None:
    """Run the command line."""
    app()
