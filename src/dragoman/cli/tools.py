"""`dragoman tools`: what a client would find, without a client."""

from __future__ import annotations

from typing import Annotated

import typer

from dragoman.cli.options import AsJson, ConfigFile, ExtensionsDir, Target
from dragoman.cli.output import print_columns, print_json, refuse
from dragoman.cli.words import Commands
from dragoman.process.exit_codes import FAILED
from dragoman.sections import nearest
from dragoman.workers.control import Source

app = Commands()


@app.command("list")
def list_tools(
    target: Target = None, extensions_dir: ExtensionsDir = None, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """List the tools that TARGET would be served with."""
    from dragoman.cli.tool_sheet import catalogue_of, described, summary

    catalogue = catalogue_of(Source(target, extensions_dir), config)
    if as_json:
        print_json([described(each) for each in catalogue])
        return
    print_columns((each.definition.name, summary(each)) for each in catalogue)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The tool's name.")],
    target: Target = None,
    extensions_dir: ExtensionsDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what a tool takes and gives, its hints and its deadline. Exit code 1 when there is no such tool."""
    from dragoman.cli.tool_sheet import catalogue_of, described, sheet

    source = Source(target, extensions_dir)
    catalogue = catalogue_of(source, config)
    found = catalogue.get(name)
    if found is None:
        names = [each.definition.name for each in catalogue]
        refuse(f"there is no tool {name!r}{nearest(name, names)}", code=FAILED)
    if as_json:
        print_json(described(found))
        return
    for line in sheet(found, source):
        typer.echo(line)
