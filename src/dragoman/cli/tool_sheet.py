"""What `dragoman tools` tells about the tools of a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from dragoman.cli.arguments import kind_in_words
from dragoman.cli.options import settings_from
from dragoman.cli.output import kept_for_answers
from dragoman.cli.target import server_for
from dragoman.telemetry.clean import sanitize
from dragoman.tools.catalogue import Catalogue, RegisteredTool
from dragoman.tools.content import encode_json
from dragoman.workers.control import Source


def catalogue_of(source: Source, config: Path | None) -> Catalogue:
    """The tools that a source would be served with; or the end of the command."""
    settings = settings_from(config)
    with kept_for_answers():
        return server_for(source, settings.config).catalogue


def described(tool: RegisteredTool) -> dict[str, Any]:
    """The tool's entry in `tools/list`, and what clients are not told."""
    category = tool.definition.category
    ours = {"timeoutMs": tool.timeout_ms, **({"category": category} if category is not None else {})}
    return {**tool.definition.listing(), **ours}


def summary(tool: RegisteredTool) -> str:
    """The first line of its description."""
    return sanitize(tool.definition.description.strip().partition("\n")[0])


def sheet(tool: RegisteredTool, source: Source) -> Iterator[str]:
    """What a person is told about a tool, line by line."""
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
    notes = ["required"] if is_required else []
    if isinstance(schema, Mapping):
        notes += [f"default {encode_json(schema['default']).decode()}"] if "default" in schema else []
        notes += [str(schema["description"])] if "description" in schema else []
    return "; ".join(notes)
