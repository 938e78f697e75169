"""Where data is kept, platform by platform."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.config import StorageConfig
from dragoman.storage import data_directory

HOME = Path.home()


@pytest.mark.parametrize(
    ("platform", "environ", "folder"),
    [
        ("linux", {}, HOME / ".local/share/dragoman"),
        ("linux", {"XDG_DATA_HOME": "/data"}, Path("/data/dragoman")),
        ("linux", {"XDG_DATA_HOME": ""}, HOME / ".local/share/dragoman"),
        ("linux", {"XDG_DATA_HOME": "relative"}, HOME / ".local/share/dragoman"),
        ("darwin", {"XDG_DATA_HOME": "/data"}, HOME / "Library/Application Support/dragoman"),
        ("win32", {"LOCALAPPDATA": "/local"}, Path("/local/dragoman")),
        ("win32", {}, HOME / "AppData/Local/dragoman"),
    ],
)
def test_each_platform_has_its_place(platform: str, environ: dict[str, str], folder: Path) -> None:
    assert data_directory(StorageConfig(), environ, platform) == folder


@pytest.mark.parametrize(("given", "folder"), [("/srv/data", Path("/srv/data")), ("~/data", HOME / "data")])
def test_the_setting_wins_and_nothing_is_created(given: str, folder: Path) -> None:
    environ = {"XDG_DATA_HOME": "/elsewhere"}
    assert data_directory(StorageConfig(data_dir=given), environ) == folder
    assert not folder.exists()
