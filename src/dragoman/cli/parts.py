"""The commands of parts: `dragoman <command>`, for the parts that a server with these settings has."""

from __future__ import annotations

import sys
from pathlib import Path
from pkgutil import resolve_name

import typer

from dragoman.cli.options import load_settings
from dragoman.cli.output import complain
from dragoman.config import Settings
from dragoman.errors import ConfigError
from dragoman.process.exit_codes import UNUSABLE


def add_commands(app: typer.Typer, words: list[str]) -> Settings | None:
    """Add the commands of parts to `app`, unless `words` begin with one that it has; returns the settings.

    `--config` is then taken out of `words`: it says where the parts are named, and is no option of their commands.
    """
    known = {command.name or getattr(command.callback, "__name__", None) for command in app.registered_commands}
    if not words or words[0] in known | {group.name for group in app.registered_groups} | {"--version"}:
        return None
    file = _take_option(words, "--config")
    try:
        settings = load_settings(None if file is None else Path(file))
    except ConfigError as error:
        if words[:1] and not words[0].startswith("-"):  # `--help` does not depend on settings.
            complain("The settings cannot be used:", *str(error).splitlines())
            sys.exit(UNUSABLE)
        return None
    from dragoman.app import parts_of  # Most commands need nothing of what parts need.

    for part in parts_of(settings.config):
        for command in part.commands:
            app.command(command.name)(resolve_name(command.run) if isinstance(command.run, str) else command.run)
    return settings


def _take_option(words: list[str], option: str) -> str | None:
    """Remove an option and its value from `words`; returns the value."""
    for at, word in enumerate(words):
        name, has_value, value = word.partition("=")
        if name == option:
            taken = words[at : at + (1 if has_value else 2)]
            del words[at : at + len(taken)]
            return value if has_value else taken[1] if len(taken) > 1 else None
    return None
