"""Where data is kept, platform by platform."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from dragoman.errors import ConfigError
from dragoman.storage.settings import StorageConfig, data_directory

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


@pytest.mark.parametrize("given", [None, "~/data", "~nobody-at-all/data"])
def test_where_there_is_no_home_the_setting_is_asked_for(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int | str) -> NoReturn:
        raise KeyError(user)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr("pwd.getpwnam", unknown)
    with pytest.raises(ConfigError) as refused:
        data_directory(StorageConfig(data_dir=given), {})
    assert refused.value.problems == (("storage.data_dir", "there is no home directory to keep it in"),)
    assert data_directory(StorageConfig(data_dir="/srv"), {}) == Path("/srv")
