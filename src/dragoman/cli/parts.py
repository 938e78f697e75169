"""The commands of parts: `dragoman <command>`, for the parts of packages that the settings name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import typer

from dragoman.cli.commands import COMMANDS
from dragoman.process.exit_codes import UNUSABLE

if TYPE_CHECKING:
    from dragoman.config import Settings


def add_commands(app: typer.Typer, words: list[str]) -> Settings | None:
    """Add the commands of parts to `app`, unless `words` begin with one of `COMMANDS`; returns the settings.

    `--config` is then taken out of `words`: it says where the parts are named, and is no option of their commands.
    Without it, and without a variable that sets something of `server`, no part is named and no settings are read.
    """
    if not words or words[0] in COMMANDS or words[0] == "--version":
        return None
    file = _take_option(words, "--config")
    if file is None and not any(name.upper().startswith("DRAGOMAN_SERVER") for name in os.environ):
        return None
    from dragoman.cli.options import load_settings
    from dragoman.errors import ConfigError
    from dragoman.parts.installed import installed_parts

    try:
        settings = load_settings(None if file is None else Path(file))
    except ConfigError as error:
        if words[:1] and not words[0].startswith("-"):  # `--help` does not depend on settings.
            from dragoman.cli.output import complain

            complain("The settings cannot be used:", *str(error).splitlines())
            sys.exit(UNUSABLE)
        return None
    for part in installed_parts(settings.config.server.parts):
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
