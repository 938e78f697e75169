"""Rounds with lost files run, and find a server that goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chaos import losses
from chaos.losses import run_losses
from dragoman.adapters import sqlite_database

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


async def test_servers_that_lose_their_database_acknowledge_nothing(tmp_path: Path) -> None:
    report = await run_losses(1, tmp_path, 1)
    assert report.problems == []
    assert report.losses == {f"move {sqlite_database.FILE_NAME}": 1}
    assert 2 <= report.acknowledged < report.calls
    assert os.listdir(tmp_path) == []


async def test_servers_that_go_on_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those would whose file was not lost at all."""
    monkeypatch.setattr(losses, "LOSSES", (("lose nothing", sqlite_database.FILE_NAME, lambda file: None),))
    monkeypatch.setattr(losses, "_PATIENCE", 5.0)
    report = await run_losses(1, tmp_path, 1)
    assert any("was acknowledged after the loss" in each for each in report.problems)
    assert any("/ready of " in each for each in report.problems)
