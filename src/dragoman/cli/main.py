"""`dragoman`: one command to run tools."""

from __future__ import annotations

import typer

from dragoman import __version__
from dragoman.cli.serve import serve

app = typer.Typer(
    name="dragoman",
    help="A governed MCP runtime: every tool call ordered, limited, timed and recorded.",
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


def main() -> None:
    """Run the command line."""
    app()
