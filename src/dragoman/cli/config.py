"""`dragoman config`: what is set, where it was set, and whether it can be. The target's code is never loaded."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from dragoman import errors
from dragoman.cli.options import AsJson, ConfigFile, load_settings, settings_from
from dragoman.cli.output import complain, print_columns, print_json, refuse
from dragoman.cli.words import Commands
from dragoman.config import Config, Settings
from dragoman.process.exit_codes import UNUSABLE
from dragoman.sections import Section, leaves, nearest

MASK = "********"

app = Commands()


class Row(NamedTuple):
    """One setting in force."""

    name: str
    value: Any
    source: str


@app.command()
def show(
    config: ConfigFile = None,
    section: Annotated[str | None, typer.Option(help="Only this section.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not a default.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the settings in force, and where each of them came from. Secrets are masked."""
    settings = settings_from(config)
    sections = settings.config.__struct_fields__
    if section is not None and section not in sections:
        refuse(f"there is no section {section!r}{nearest(section, sections)}")
    wanted = [
        row
        for row in rows(settings)
        if (section is None or row.name.startswith(f"{section}.")) and (not changed or row.source != "default")
    ]
    file = None if settings.file is None else str(settings.file)
    if as_json:
        described = {row.name: {"value": row.value, "source": row.source} for row in wanted}
        print_json({"file": file, "settings": described})
        return
    typer.echo(f"# {file or 'no file; ./dragoman.toml and ./dragoman.json are looked for'}")
    cells = [(row.name, msgspec.json.encode(row.value).decode(), row.source) for row in wanted]
    for _, group in groupby(cells, lambda row: row[0].split(".")[0]):
        typer.echo()
        print_columns(group, dim_last=True)


@app.command()
def schema(config: ConfigFile = None) -> None:
    """Print the JSON Schema (2020-12) of the file, for editors and checks.

    It spells settings in snake_case. Dragoman reads camelCase as well, which the schema does not list. The sections of
    parts are in it if the settings name the parts.
    """
    try:
        kind = type(load_settings(config).config)
    except errors.ConfigError as error:
        if config is not None:
            refuse("The settings cannot be used:", *str(error).splitlines())
        kind = Config
    print_json(json_schema(kind), indented=True)


@app.command()
def check(
    file: Annotated[
        Path | None, typer.Argument(help="The file. Without it, ./dragoman.toml or ./dragoman.json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a file, together with the environment, as `serve` would. Exit code 2 when something is wrong."""
    problems: tuple[tuple[str, str], ...] = ()
    try:
        settings = load_settings(file)
        file = settings.file
    except errors.ConfigError as error:
        problems = error.problems
    if as_json:
        found = [{"path": path, "message": message} for path, message in problems]
        print_json({"valid": not problems, **({"errors": found} if found else {})})
    elif problems:
        complain("The settings cannot be used:", *(f"{name}: {text}" for name, text in problems))
    else:
        typer.echo(f"{file or 'No file, and the environment'}: OK")
    raise typer.Exit(UNUSABLE if problems else 0)


def rows(settings: Settings) -> Iterator[Row]:
    """Every setting in force; what is secret is masked."""
    values = msgspec.to_builtins(settings.config)
    for name, value in masked(type(settings.config), values):
        yield Row(name, value, settings.sources.get(name, "default"))


def masked(section: type[Section], values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of `values`, without those that nobody should see."""
    for name, value, marks in leaves(section, values):
        yield name, MASK if "is_secret" in marks and value is not None else value


def json_schema(kind: type[Config] = Config) -> dict[str, Any]:
    """The JSON Schema of a settings file."""
    _, definitions = msgspec.json.schema_components([kind])
    whole = definitions.pop("Config")
    whole["properties"] = {"$schema": {"type": "string"}, **whole["properties"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **whole,
        "title": "Dragoman's settings",
        "$defs": definitions,
    }
