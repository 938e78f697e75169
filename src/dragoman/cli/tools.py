"""`dragoman tools`: what a client would find, without a client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import AsJson, ConfigFile, ExtensionsDir, Target, settings_from
from dragoman.cli.output import kept_for_answers, print_columns, print_json, refuse
from dragoman.process.exit_codes import FAILED
from dragoman.workers.control import Source

if TYPE_CHECKING:
    from dragoman.tools.catalogue import Catalogue, RegisteredTool

app = typer.Typer(no_args_is_help=True, help="List and describe the tools of a target.")


@app.command("list")
def list_tools(
    target: Target = None, extensions_dir: ExtensionsDir = None, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """List the tools that TARGET would be served with."""
    from dragoman.telemetry.clean import sanitize

    catalogue = _catalogue(Source(target, extensions_dir), config)
    if as_json:
        print_json([_described(each) for each in catalogue])
        return
    print_columns((each.definition.name, sanitize(_summary(each.definition.description))) for each in catalogue)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="The tool's name.")],
    target: Target = None,
    extensions_dir: ExtensionsDir = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what a tool takes and gives, its hints and its deadline. Exit code 1 when there is no such tool."""
    from dragoman.sections import nearest

    source = Source(target, extensions_dir)
    catalogue = _catalogue(source, config)
    found = catalogue.get(name)
    if found is None:
        names = [each.definition.name for each in catalogue]
        refuse(f"there is no tool {name!r}{nearest(name, names)}", code=FAILED)
    if as_json:
        print_json(_described(found))
        return
    for line in _sheet(found, source):
        typer.echo(line)


def _catalogue(source: Source, config: Path | None) -> Catalogue:
    from dragoman.cli.target import server_for

    settings = settings_from(config)
    with kept_for_answers():
        return server_for(source, settings.config).catalogue


def _described(tool: RegisteredTool) -> dict[str, Any]:
    """The tool's entry in `tools/list`, and what clients are not told."""
    category = tool.definition.category
    ours = {"timeoutMs": tool.timeout_ms, **({"category": category} if category is not None else {})}
    return {**tool.definition.listing(), **ours}


def _summary(description: str) -> str:
    return description.strip().partition("\n")[0]


def _sheet(tool: RegisteredTool, source: Source) -> Iterator[str]:
    from dragoman.cli.arguments import kind_in_words
    from dragoman.telemetry.clean import sanitize

    definition = tool.definition
    yield typer.style(definition.name, bold=True) + (f": {sanitize(definition.title)}" if definition.title else "")
    yield from map(sanitize, definition.description.splitlines())
    schema = definition.input_schema
    parameters: Mapping[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    if parameters:
        yield ""
        rows = [(name, kind_in_words(each), _note(each, name in required)) for name, each in parameters.items()]
        widths = [max(len(row[column]) for row in rows) for column in range(2)]
        for name, kind, note in rows:
            yield sanitize(f"  {name:{widths[0]}}  {kind:{widths[1]}}  {note}".rstrip())
    yield ""
    if definition.output_schema is not None:
        schema = definition.output_schema
        yield f"Returns   {kind_in_words(schema['properties']['result'] if tool.returns.is_wrapped else schema)}"
    hints = [name.replace("_", " ") for name in definition.hints.__struct_fields__ if getattr(definition.hints, name)]
    if hints:
        yield f"Hints     {', '.join(hints)}"
    yield f"Deadline  {tool.timeout_ms / 1000:g} s"
    if definition.cache_ttl_ms is not None:
        span = f"for {definition.cache_ttl_ms / 1000:g} s" if definition.cache_ttl_ms else "for ever"
        tags = f", or until {', '.join(definition.cache_tags)} changes" if definition.cache_tags else ""
        yield f"Kept      {span}{sanitize(tags)}"
    given = [f"{name}=…" for name in parameters if name in required]
    places = {"--target": source.target, "--extensions-dir": source.extensions}
    named = [f"{option} {place}" for option, place in places.items() if place is not None]
    yield " ".join(("Try it    dragoman call", definition.name, *given, *named))


def _note(schema: Any, is_required: bool) -> str:
    from dragoman.tools.content import encode_json

    notes = ["required"] if is_required else []
    if isinstance(schema, Mapping):
        notes += [f"default {encode_json(schema['default']).decode()}"] if "default" in schema else []
        notes += [str(schema["description"])] if "description" in schema else []
    return "; ".join(notes)
