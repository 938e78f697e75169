"""What SQLite's storage says about the machine, without changing anything there."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from dragoman.adapters import sqlite_storage
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.findings import Finding
from dragoman.storage.settings import StorageConfig
from dragoman.testing import ManualClock


def findings(folder: Path | str) -> list[Finding]:
    return list(SqliteStorage(StorageConfig(data_dir=str(folder)), ManualClock(), ()).examine())


def test_a_data_folder_is_looked_at_and_not_made(tmp_path: Path) -> None:
    assert [each.verdict for each in findings(tmp_path / "a" / "b")] == ["ok", "ok"]
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    assert [each.verdict for each in findings(tmp_path / "file" / "b")] == ["problem", "ok"]


@pytest.mark.parametrize(
    ("folder", "said"), [("/tmp/" + 300 * "x", "File name too long"), ("/tmp/a\0b", "embedded null")]
)
def test_a_data_folder_that_cannot_even_be_looked_at_is_a_problem(folder: str, said: str) -> None:
    finding, _ = findings(folder)
    assert finding.verdict == "problem"
    assert said in finding.message
    assert finding.advice


def test_a_data_folder_that_cannot_be_written_is_a_problem_and_little_room_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)  # Root may write everywhere.
        finding, _ = findings(tmp_path)
        assert (finding.verdict, finding.message) == ("problem", f"{tmp_path} cannot be written")
    monkeypatch.setattr(sqlite_storage, "_LITTLE_SPACE", 1 << 62)
    assert findings(tmp_path)[0].verdict == "warning"


def test_an_old_sqlite_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 33, 1))
    _, finding = findings(tmp_path)
    assert (finding.verdict, finding.message) == ("problem", "SQLite 3.34.0 or newer is needed, and this is 3.33.1")
