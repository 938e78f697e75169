"""The command that installs an extra works wherever Dragoman came from."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from dragoman.extras import install_command

FOLDER = {"url": "file:///srv/my%20tools/dragoman", "dir_info": {}}
EDITABLE = {"url": "file:///srv/dragoman", "dir_info": {"editable": True}}
WHEEL = {"url": "file:///srv/dragoman-0.1.0-py3-none-any.whl", "archive_info": {}}
REPOSITORY = {"url": "https://git.example/dragoman.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}


@pytest.mark.parametrize(
    ("noted", "command"),
    [
        (None, "pip install 'dragoman[http]'"),
        ("no json", "pip install 'dragoman[http]'"),
        (json.dumps(FOLDER), "pip install '/srv/my tools/dragoman[http]'"),
        (json.dumps(EDITABLE), "pip install -e '/srv/dragoman[http]'"),
        (json.dumps(WHEEL), "pip install 'dragoman[http] @ file:///srv/dragoman-0.1.0-py3-none-any.whl'"),
        (json.dumps(REPOSITORY), "pip install 'dragoman[http] @ git+https://git.example/dragoman.git'"),
    ],
    ids=["an index", "damaged", "a folder", "an editable folder", "a wheel", "a repository"],
)
def test_an_extra_is_installed_from_where_the_package_came_from(
    noted: str | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "dragoman-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: dragoman\nVersion: 0.1.0\n")
    if noted is not None:
        (info / "direct_url.json").write_text(noted)
    monkeypatch.syspath_prepend(tmp_path)
    assert install_command("http") == command


def test_without_an_installed_package_the_name_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_command("s3") == "pip install 'dragoman[s3]'"
