"""Where the server keeps what must outlive it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from dragoman.config import StorageConfig
from dragoman.errors import ConfigError


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
