"""Where the server keeps what must outlive it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from dragoman.errors import ConfigError
from dragoman.sections import Bytes, Section, about

DEFAULT_SPACE = "default"
"""Of a server that has neither the setting nor targets to make a name of."""


class StorageConfig(Section, frozen=True):
    """Where what must outlive the process is kept."""

    data_dir: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        about("The folder; unset, the platform's place for application data."),
    ] = None
    engine: Annotated[
        Literal["sqlite", "memory"],
        about("A database in the folder, or one in a temporary folder that ends with the process."),
    ] = "sqlite"
    space: Annotated[
        Annotated[str, Meta(min_length=1, max_length=200)] | None,
        about(
            "Servers of one space share agents and messages; unset, it is made of the server's name and its targets."
        ),
    ] = None
    max_bytes_per_caller: Annotated[
        Bytes, about("The most that one caller may keep with the memory_* tools.", is_limit=True)
    ] = 268_435_456
    vector_cache_bytes: Annotated[
        Bytes, about("The most memory that a process uses for the vectors of documents.", is_limit=True)
    ] = 268_435_456


def data_directory(config: StorageConfig, environ: Mapping[str, str], platform: str = sys.platform) -> Path:
    """`storage.data_dir`, or the platform's place for application data. Nothing is created by asking.

    Raises `ConfigError` where that is in a home that there is not, as in many containers.
    """
    try:
        return _directory(config, environ, platform)
    except RuntimeError:
        raise ConfigError([("storage.data_dir", "there is no home directory to keep it in")]) from None


def _directory(config: StorageConfig, environ: Mapping[str, str], platform: str) -> Path:
    if config.data_dir is not None:
        return Path(config.data_dir).expanduser()
    if platform == "win32":
        place = environ.get("LOCALAPPDATA")
        return (Path(place) if place else Path.home() / "AppData" / "Local") / "dragoman"
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dragoman"
    place = environ.get("XDG_DATA_HOME", "")
    # The specification has relative paths ignored: they would mean another folder for every working directory.
    return (Path(place) if place.startswith("/") else Path.home() / ".local" / "share") / "dragoman"
