"""The command line: what it helps with, what it refuses, and how it says so."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dragoman import __version__
from dragoman.cli.commands import EXIT_CODES, app
from dragoman.process import exit_codes
from tests.support.waiting import PATIENCE

runner = CliRunner()


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that holds no settings."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dragoman(
    *arguments: str, requests: bytes = b"", environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own, with `requests` as the file it reads."""
    Path("requests").write_bytes(requests)
    with Path("requests").open("rb") as stdin:
        return subprocess.run(
            [sys.executable, "-m", "dragoman", *arguments],
            stdin=stdin,
            capture_output=True,
            timeout=PATIENCE,
            env={**os.environ, **(environ or {})},
        )


def help_of(*arguments: str) -> str:
    """What help says, without the paint that some environments ask for."""
    helped = runner.invoke(app, [*arguments, "--help"], env={"COLUMNS": "200"})
    assert helped.exit_code == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", helped.stdout)


def test_help_names_the_commands_and_no_command_gives_help() -> None:
    helped = help_of()
    assert "serve" in helped
    assert "governed MCP runtime" in helped
    assert "serve" in runner.invoke(app, []).output


def test_help_for_serve_explains_target_options_and_exit_codes() -> None:
    helped = help_of("serve")
    for word in ("TARGET", "--transport", "--config", "--log-level", "module:object", "Exit codes"):
        assert word in helped


def test_help_explains_every_exit_code() -> None:
    told = {int(number) for number in re.findall(r"\b\d+\b", EXIT_CODES)}
    assert told == {0, *(value for value in vars(exit_codes).values() if isinstance(value, int))}


def test_the_version_is_told() -> None:
    told = runner.invoke(app, ["--version"])
    assert (told.exit_code, told.stdout) == (0, f"dragoman {__version__}\n")


def test_an_unknown_setting_is_refused_and_the_nearest_suggested(workplace: Path) -> None:
    (workplace / "my.toml").write_text("[tools]\nmax_payload_byte = 5\n[resource]\n")
    refused = runner.invoke(app, ["serve", "--config", "my.toml"])
    assert refused.exit_code == 2
    assert refused.stdout == ""
    assert refused.stderr.splitlines() == [
        "dragoman: The settings cannot be used:",
        "  tools.max_payload_byte: is not a setting; did you mean tools.max_payload_bytes? (my.toml)",
        "  resource: is not a setting; did you mean resources? (my.toml)",
    ]


@pytest.mark.parametrize(
    ("arguments", "environ", "setting"),
    [
        (["--log-level", "loud"], {}, "logging.level"),
        ([], {"DRAGOMAN_TOOLS__DEFAULT_TIMEOUT_MS": "soon"}, "tools.default_timeout_ms"),
        ([], {"DRAGOMAN_TOOLS__DEFAULT_TIMEOUT": "5"}, "did you mean tools.default_timeout_ms?"),
        (["--config", "gone.toml"], {}, "gone.toml: No such file or directory"),
    ],
)
def test_bad_settings_from_anywhere_are_refused_by_name(
    arguments: list[str], environ: dict[str, str], setting: str
) -> None:
    refused = runner.invoke(app, ["serve", *arguments], env=environ)
    assert refused.exit_code == 2
    assert setting in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["call", "echo", "message=hi"], ["tools", "list"], ["serve"]])
def test_without_a_home_to_keep_data_in_a_folder_is_asked_for(arguments: list[str]) -> None:
    refused = dragoman(*arguments, environ={"HOME": "", "DRAGOMAN_STORAGE__DATA_DIR": "~nobody-at-all/data"})
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert refused.stderr.decode().splitlines() == [
        "dragoman: The settings cannot be used:",
        "  storage.data_dir: there is no home directory to keep it in",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_name_that_no_host_can_have_is_refused_in_one_clear_line(workers: str) -> None:
    address = ["--host", 64 * "x", "--allow-unauthenticated"]
    refused = dragoman("serve", "--transport", "streamable-http", "--workers", workers, *address)
    assert (refused.returncode, refused.stdout) == (2, b"")
    (line,) = refused.stderr.decode().splitlines()
    assert line.startswith("dragoman: Cannot listen on xxx")


@pytest.mark.parametrize("arguments", [["serve", "--nonsense"], ["nonsense"], ["serve", "--transport", "pigeon"]])
def test_a_command_that_is_not_understood_exits_with_2(arguments: list[str]) -> None:
    refused = runner.invoke(app, arguments)
    assert refused.exit_code == 2
    assert "nonsense" in refused.stderr or "pigeon" in refused.stderr


@pytest.mark.slow
def test_a_target_that_is_not_there_is_refused_in_one_clear_line() -> None:
    refused = dragoman("serve", "gone.py")
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert refused.stderr.decode() == "dragoman: cannot load tools from 'gone.py': there is no such file\n"


@pytest.mark.slow
def test_a_module_that_is_not_there_is_refused_in_one_clear_line() -> None:
    refused = dragoman("serve", "no_such_module")
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert refused.stderr.startswith(b"dragoman: cannot load tools from 'no_such_module': ")
    assert refused.stderr.count(b"\n") == 1


@pytest.mark.slow
def test_a_file_that_raises_is_refused_with_its_traceback(workplace: Path) -> None:
    (workplace / "raising.py").write_text("def load():\n    raise RuntimeError('not today')\n\nload()\n")
    refused = dragoman("serve", "raising.py")
    stderr = refused.stderr.decode()
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert 'raising.py", line 2, in load' in stderr
    assert stderr.endswith("dragoman: cannot load tools from 'raising.py': RuntimeError: not today\n")


@pytest.mark.slow
def test_a_tool_that_cannot_be_registered_is_refused_by_name(workplace: Path) -> None:
    (workplace / "odd.py").write_text("from dragoman import tool\n@tool(name='no spaces')\ndef f() -> None: ...\n")
    refused = dragoman("serve", "odd.py")
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert refused.stderr.startswith(b"dragoman: tool 'no spaces' cannot be registered: name: ")
    assert b"Traceback" not in refused.stderr


@pytest.mark.slow
@pytest.mark.requirement("FND-LOG-02")
def test_without_a_target_the_built_in_tools_are_served_and_the_exit_is_clean() -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    served = dragoman("serve", requests=json.dumps(request).encode())
    assert served.returncode == 0
    (answer,) = map(json.loads, served.stdout.splitlines())
    memory = ["bulk_delete", "delete", "list", "retrieve", "search", "store"]
    names = [each["name"] for each in answer["result"]["tools"]]
    assert names == ["echo", "health", *(f"memory_{name}" for name in memory)]
    entries = [json.loads(line) for line in served.stderr.splitlines()]
    assert [(entry["level"], entry["message"]) for entry in entries] == [
        ("info", "server started"),
        ("info", "server stopped"),
    ]


@pytest.mark.slow
def test_the_log_level_and_format_can_be_set() -> None:
    quiet = dragoman("serve", "--log-level", "error")
    assert (quiet.returncode, quiet.stderr) == (0, b"")
    Path("dragoman.toml").write_text('[logging]\nformat = "text"\n')
    text = dragoman("serve")
    assert [line.split()[1:4] for line in text.stderr.decode().replace("\x1b[0m", "").splitlines()] == [
        ["INFO", "server", "started"],
        ["INFO", "server", "stopped"],
    ]
