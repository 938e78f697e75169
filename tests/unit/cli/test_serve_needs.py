"""What `dragoman serve` says when something that a transport needs is not there."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from dragoman.cli.main import app


@pytest.mark.parametrize("transport", ["streamable-http", "sse"])
def test_http_without_its_extra_is_told_what_to_install(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.cli.serve.find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["serve", "--transport", transport])
    assert done.exit_code == 2
    assert "pip install 'dragoman[http]'" in done.output
