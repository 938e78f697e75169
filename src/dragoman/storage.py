"""Where the server keeps what must outlive it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from dragoman.config import StorageConfig


def data_directory(config: StorageConfig, environ: Mapping[str, str], platform: str = sys.platform) -> Path:
    """`storage.data_dir`, or the platform's place for application data. Nothing is created by asking."""
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
