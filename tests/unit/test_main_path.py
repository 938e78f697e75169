"""What `python -m dragoman` does about the working directory, which Python puts first on `sys.path`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import dragoman
from dragoman.main_path import drop_working_directory


def test_the_working_directory_is_dropped_where_python_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [os.getcwd(), "other", os.getcwd()])
    drop_working_directory()
    assert sys.path == ["other", os.getcwd()]  # The second one is from PYTHONPATH.
    drop_working_directory()
    assert sys.path == ["other", os.getcwd()]


def test_the_folder_that_dragoman_itself_is_run_from_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dragoman.__file__ is not None
    monkeypatch.chdir(Path(dragoman.__file__).parents[1])
    monkeypatch.setattr(sys, "path", [os.getcwd(), "other"])
    drop_working_directory()
    assert sys.path == [os.getcwd(), "other"]


def test_a_working_directory_that_is_deleted_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["other"])
    drop_working_directory()
    assert sys.path == ["other"]
