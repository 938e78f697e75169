"""What the commands say when something that an option needs is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dragoman.cli.commands import app
from dragoman.extras import install_command


@pytest.mark.parametrize("transport", ["streamable-http", "sse"])
def test_http_without_its_extra_is_told_what_to_install(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.cli.serve.find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["serve", "--transport", transport])
    assert done.exit_code == 2
    assert install_command("http") in done.output


@pytest.mark.parametrize("command", [["serve"], ["tools", "list"], ["call", "x"]])
def test_a_folder_of_modules_without_its_extra_is_told_what_to_install(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.cli.options.find_spec", lambda name: None)
    done = CliRunner().invoke(app, [*command, "--extensions-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert install_command("apcore") in done.output
