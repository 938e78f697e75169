"""What the commands say when something that an option needs is not there."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dragoman.cli.commands import app
from dragoman.cli.port_holder import holder_of
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


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--port", "9000"], "--port"),
        (["--host", "::1", "--uds", "x.sock"], "--host, --uds"),
        (
            ["--explorer", "--allow-execute", "--explorer-prefix", "/x"],
            "--explorer-prefix, --explorer, --allow-execute",
        ),
        (["--allow-unauthenticated"], "--allow-unauthenticated"),
    ],
)
def test_options_for_http_are_refused_with_stdio(options: list[str], named: str) -> None:
    done = CliRunner().invoke(app, ["serve", *options])
    assert (done.exit_code, done.stdout) == (2, "")
    said = f"dragoman: {named}: only with --transport streamable-http; stdio has no address and no page\n"
    assert done.stderr == said


@pytest.mark.parametrize("option", [["--allow-execute"], ["--explorer-prefix", "/look"]])
def test_options_of_the_explorer_need_it(option: list[str]) -> None:
    done = CliRunner().invoke(app, ["serve", "--transport", "streamable-http", *option])
    assert (done.exit_code, done.stderr) == (2, f"dragoman: {option[0]} is for the explorer: add --explorer\n")


@pytest.mark.parametrize(
    ("name", "hint"), [("http", "; did you mean streamable-http?"), ("stdoi", "; did you mean stdio?"), ("ftp", "")]
)
def test_a_transport_that_is_not_there_is_refused_with_the_nearest(name: str, hint: str) -> None:
    done = CliRunner().invoke(app, ["serve", "--transport", name])
    assert done.exit_code == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    assert f"there is no transport '{name}'{hint} There are stdio, streamable-http, sse." in said


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells which process listens")
def test_the_process_that_listens_on_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert str(holder_of(port)).startswith(f"process {os.getpid()}, ")
    assert holder_of(port) is None
