"""Arguments and options that several commands have, and what they lead to."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from dragoman import errors
from dragoman.cli.output import refuse
from dragoman.config import Settings
from dragoman.extras import install_command
from dragoman.sections import Section

Target: TypeAlias = Annotated[
    str | None,
    typer.Argument(help="A Python file, a module, or module:object. Without it, the built-in tools."),
]
ConfigFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Settings, as TOML or JSON. Without it, ./dragoman.toml or ./dragoman.json, which can only be stricter.",
    ),
]
LogLevelOption: TypeAlias = Annotated[str | None, typer.Option("--log-level", help="debug, info, warn or error.")]


def _folder(given: str | None) -> str | None:
    """A folder of modules that can be looked at; or the end of the command."""
    if given is not None and find_spec("apcore") is None:
        refuse(f"--extensions-dir needs the extra `apcore`: {install_command('apcore')}")
    if given is not None and not os.path.isdir(given):
        refuse(f"There is no folder {given}")
    return given


ExtensionsDir: TypeAlias = Annotated[
    str | None,
    typer.Option("--extensions-dir", callback=_folder, help="A folder of apcore modules, beside TARGET's tools."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


def split_target(target: str) -> tuple[str, str]:
    """The file or module, and the object in it; empty when none is named."""
    drive = target[:2] if re.match(r"[A-Za-z]:[\\/]", target) else ""
    place, _, name = target[len(drive) :].partition(":")
    return drive + place, name


def is_file(place: str) -> bool:
    """Whether the target is a file, and not a module."""
    return place.endswith(".py") or os.sep in place


def load_settings(config: Path | None, flags: dict[str, Any] | None = None) -> Settings:
    """The settings in force, with the sections of the parts that they name. Raises `ConfigError`."""
    return Settings.load(config, flags=flags, find_sections=_sections_of)


def _sections_of(names: Sequence[str]) -> Mapping[str, type[Section]]:
    if not names:
        return {}
    from dragoman.parts.installed import sections_of_installed  # Most commands need nothing of what parts need.

    return sections_of_installed(names)


def settings_from(config: Path | None, flags: dict[str, Any] | None = None) -> Settings:
    """The settings in force, or the end of the command."""
    try:
        return load_settings(config, flags)
    except errors.ConfigError as error:
        refuse("The settings cannot be used:", *str(error).splitlines())
