"""`dragoman doctor`: what it sees, what it says, and that it touches nothing."""

from __future__ import annotations

import json
import socket
import sqlite3
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner, Result

from dragoman.adapters.process_locks import ProcessLocks, processes_with
from dragoman.adapters.sqlite_database import FILE_NAME, has_reset_defect
from dragoman.cli import checks
from dragoman.cli.clients import CLIENTS
from dragoman.cli.commands import app
from dragoman.cli.sharing import shared_database
from dragoman.config import make_config
from dragoman.edge.settings import HttpConfig
from dragoman.findings import Finding
from dragoman.storage.settings import StorageConfig
from tests.support.kept_messages import fill
from tests.support.processes import ServerProcess, free_port

runner = CliRunner()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to stand in, and an empty home."""
    (tmp_path / "home").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for variable in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "APPDATA", "LOCALAPPDATA", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("DRAGOMAN_HTTP__PORT", str(free_port()))
    return tmp_path / "here"


def doctor(*arguments: str) -> Result:
    return runner.invoke(app, ["doctor", *arguments])


@pytest.mark.slow
def test_a_healthy_machine_has_no_problems_and_is_left_as_it_was(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_SLOW_START", 20.0)  # It may be as busy as it likes.
    (place / "broken_target.py").write_text("raise SystemExit('nobody may load this')")
    result = doctor("--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0, report
    assert report["ok"] is True
    assert [(each["check"], each["verdict"]) for each in report["findings"]] == [
        ("Python", "ok"),
        ("packages", "ok"),
        ("settings", "ok"),
        ("storage", "ok"),
        ("SQLite", "ok"),
        ("agents", "ok"),
        ("trial start", "ok"),
        ("port", "ok"),
        *((client.name, "ok") for client in CLIENTS.values()),
    ]
    assert [each.name for each in place.iterdir()] == ["broken_target.py"]
    assert list(Path.home().iterdir()) == []


def test_a_person_is_told_line_by_line_and_what_to_do(place: Path) -> None:
    (place / "dragoman.toml").write_text("[xyzzy]")
    result = doctor()
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ok       Python: 3.")
    at = lines.index("problem  settings: xyzzy: is not a setting (dragoman.toml)")
    assert lines[at + 1] == "         → See `dragoman config check`."
    assert lines[-1] == "1 problem, no warnings."
    assert "trial start" not in result.stdout


def test_an_old_python_is_a_problem() -> None:
    assert checks.python((3, 10, 9)).verdict == "problem"
    assert checks.python((3, 11)).verdict == "ok"


@pytest.mark.parametrize(
    ("requirement", "found"),
    [
        ("msgspec>=0.1", []),
        ("msgspec", []),
        ("msgspec>=999", ["msgspec"]),
        ("msgspec~=99.0.0", ["msgspec"]),
        ("msgspec<99,>=0.1", []),
        ("msgspec<99,>=98", ["msgspec"]),
        ("msgspec<0.1,>=0.0.1", ["msgspec"]),
        ("no-such-package>=1", ["no-such-package is not installed"]),
        ("no-such-package>=1; extra == 'http'", []),
        (f"no-such-package>=1; sys_platform != '{sys.platform}'", []),
        (f"no-such-package>=1; sys_platform == '{sys.platform}'", ["no-such-package is not installed"]),
        ("uvloop>=999", ["uvloop"]),
    ],
)
def test_a_package_that_is_missing_or_too_old_is_named(
    requirement: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.cli.checks.metadata.requires", lambda name: [requirement])
    findings = list(checks.packages())
    if found:
        (finding,) = findings
        assert finding.message.startswith(found[0])
        assert finding.verdict == ("warning" if "uvloop" in requirement else "problem")
        assert finding.advice
    else:
        assert [each.verdict for each in findings] == ["ok"]


def homeless(user: int) -> NoReturn:
    raise KeyError(user)


@pytest.mark.slow
def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", homeless)
    report = json.loads(doctor("--json").stdout)
    found = {each["check"]: (each["verdict"], each["message"]) for each in report["findings"]}
    assert found["storage"] == ("problem", "there is no home directory to keep it in")
    assert found["Cursor"][0] == "ok"


def test_a_home_that_cannot_be_looked_into_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/tmp/" + 300 * "x")
    (finding,) = checks.client_files(CLIENTS["cursor"])
    assert finding.verdict == "warning"
    assert finding.message.endswith("mcp.json: File name too long")


def server_that(code: str) -> list[str]:
    return [sys.executable, "-c", code]


ANSWER = 'print(\'{"jsonrpc": "2.0", "id": 1, "result": {}}\', flush=True)'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "verdict", "said"),
    [
        (f"input(); {ANSWER}; __import__('sys').stdin.read()", "ok", "stdout is clean"),
        (f"print('welcome!'); input(); {ANSWER}", "problem", "not JSON-RPC: b'welcome!"),
        (f"input(); {ANSWER}; print('[]')", "problem", "not JSON-RPC: b'[]"),
        ("raise SystemExit(7)", "problem", "the server ended at once, with exit code 7"),
    ],
)
def test_a_server_is_started_for_a_moment_and_listened_to(code: str, verdict: str, said: str) -> None:
    finding = checks.trial_start(server_that(code))
    assert (finding.verdict, said in finding.message) == (verdict, True), finding


@pytest.mark.slow
def test_a_server_that_cannot_be_started_or_does_not_answer_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.trial_start(["/no/such/program"]).verdict == "problem"
    monkeypatch.setattr("dragoman.cli.trial.first_answer.__defaults__", (0.2,))
    finding = checks.trial_start(server_that("__import__('time').sleep(60)"))
    assert (finding.verdict, finding.message) == ("problem", "the server did not answer")


@pytest.mark.slow
def test_a_slow_start_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.cli.checks._SLOW_START", 0.0)
    assert checks.trial_start(server_that(f"input(); {ANSWER}")).verdict == "warning"


def test_a_port_that_is_taken_is_a_warning() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        finding = checks.port(HttpConfig(port=taken.getsockname()[1]))
    assert finding.verdict == "warning"
    assert "cannot be listened on" in finding.message
    assert checks.port(HttpConfig(host="no.such.host.invalid")).verdict == "warning"
    assert checks.port(HttpConfig(host=64 * "x")).verdict == "warning"
    assert checks.port(HttpConfig(port=free_port())).verdict == "ok"


def findings(document: Any, place: Path) -> list[Finding]:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    (place / ".mcp.json").write_bytes(content)
    return list(checks.client_files(CLIENTS["claude-code"]))


def started(*command: Any) -> dict[str, Any]:
    return {"mcpServers": {"mine": {"command": command[0], "args": list(command[1:])}}}


def test_an_entry_that_can_be_started_is_fine(place: Path) -> None:
    (place / "tools.py").touch()
    for target in ("tools.py", "tools.py:one"):
        (finding,) = findings(started(sys.executable, "-m", "dragoman", "serve", str(place / target)), place)
        assert (finding.verdict, finding.message) == ("ok", ".mcp.json: 'mine' can be started")


def test_an_entry_whose_command_or_file_is_gone_is_a_problem(place: Path) -> None:
    (finding,) = findings(started("/gone/bin/dragoman", "serve"), place)
    assert (finding.verdict, finding.message) == (
        "problem",
        ".mcp.json: 'mine' starts /gone/bin/dragoman, which is not there",
    )
    (finding,) = findings(started(sys.executable, "-m", "dragoman", "serve", "/gone/tools.py:one"), place)
    assert finding.verdict == "problem"
    assert "/gone/tools" in finding.message


@pytest.mark.parametrize(
    "document",
    [
        {},
        b"",
        started("npx", "-y", "something"),
        {"mcpServers": []},
        {"mcpServers": {"a": 5, "b": {}, "c": {"command": 5, "args": "dragoman"}, "d": {"args": [1, None]}}},
    ],
)
def test_files_that_say_nothing_of_dragoman_are_fine(place: Path, document: Any) -> None:
    (finding,) = findings(document, place)
    assert (finding.verdict, finding.message) == ("ok", ".mcp.json does not mention dragoman")


@pytest.mark.parametrize("content", [b"// comment\n{}", b"[]", b"\xff", b"{"])
def test_files_that_cannot_be_read_are_a_warning_because_comments_are_allowed(place: Path, content: bytes) -> None:
    (finding,) = findings(content, place)
    assert finding.verdict == "warning"
    assert finding.advice
    (place / ".mcp.json").unlink()
    (place / ".mcp.json").mkdir()
    (finding,) = checks.client_files(CLIENTS["claude-code"])
    assert (finding.verdict, finding.message) == ("warning", ".mcp.json: Is a directory")
    (place / ".mcp.json").rmdir()
    (place / ".mcp.json").symlink_to("/dev/zero")
    (finding,) = checks.client_files(CLIENTS["claude-code"])
    assert (finding.verdict, finding.message) == ("warning", ".mcp.json: it is not a regular file")


def test_variables_of_an_entry_are_never_shown(place: Path) -> None:
    document = started("/gone/dragoman")
    document["mcpServers"]["mine"]["env"] = {"TOKEN": "hunter2"}
    assert "hunter2" not in str(findings(document, place))


@pytest.mark.slow
def test_what_a_file_says_cannot_paint_the_terminal_or_stop_the_doctor(place: Path) -> None:
    findings(started("/gone\x1b[31m\ud800é/dragoman"), place)
    shown = "starts /gone\\u001b[31m\\ud800é/dragoman"
    assert shown in doctor().stdout
    messages = [each["message"] for each in json.loads(doctor("--json").stdout)["findings"]]
    assert any(shown in message for message in messages)


@pytest.mark.parametrize(
    ("spaces", "said"), [((), "no messages and no tasks"), (("day",), "1 space"), (("a", "b"), "2 spaces")]
)
def test_the_ledger_of_messages_is_looked_at_and_not_made(spaces: tuple[str, ...], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for space in spaces:
        fill(folder, space, lambda kept: kept.hold("clerk"))
    before = sorted(folder.iterdir()) if spaces else []
    config = StorageConfig(data_dir=str(folder))
    assert list(checks.ledger(config)) == [Finding("agents", "ok", f"the ledger has {said}")]
    assert (sorted(folder.iterdir()) if folder.exists() else []) == before


def test_a_ledger_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"nothing that a database would have" * 1000)
    (found,) = checks.ledger(StorageConfig(data_dir=str(tmp_path)))
    assert (found.verdict, found.message) == (
        "problem",
        "the ledger cannot be read: file is not a database",
    )


@pytest.mark.requirement("MC-QUERY-02")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "words are searched, no vectors; no model writes the answer"),
        ({"embedder": "minilm"}, "words are searched, vectors of minilm; no model writes the answer"),
        (
            {"answers_url": "https://models.example.org", "answers_model": "small"},
            "words are searched, no vectors; small writes the answer",
        ),
    ],
)
def test_doctor_says_what_takes_part_in_answers_to_queries(settings: dict[str, Any], said: str) -> None:
    config = make_config({"gateway": {"enabled": True}, "knowledge": settings})
    (finding,) = [each for each in checks.embedder(config) if each.check == "queries"]
    assert (finding.verdict, finding.message) == ("ok", said)
    assert [each for each in checks.embedder(make_config({})) if each.check == "queries"] == []


@pytest.mark.parametrize(
    ("version", "has_defect"),
    [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 53, 0), False),
    ],
)
def test_an_sqlite_that_can_damage_a_shared_database_is_known_by_its_version(
    version: tuple[int, int, int], has_defect: bool
) -> None:
    assert has_reset_defect(version) is has_defect


def test_several_processes_on_a_directory_are_a_warning_with_an_sqlite_that_can_damage_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 40, 1))
    locks, config = ProcessLocks(tmp_path / "locks"), StorageConfig(data_dir=str(tmp_path))
    locks.take("one")
    assert list(shared_database(config)) == []
    locks.take("two")
    (finding,) = shared_database(config)
    assert (finding.check, finding.verdict) == ("SQLite", "warning")
    assert finding.message.startswith(f"2 processes use {tmp_path}, and ")
    assert "3.51.3 or newer, 3.50.7 or 3.44.6" in str(finding.advice)
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 3))
    assert list(shared_database(config)) == []
    for process in ("one", "two"):
        locks.give_back(process)


def test_several_clients_that_start_servers_are_processes_on_one_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 40, 1))
    document = started("dragoman", "serve")
    (place / ".mcp.json").write_text(json.dumps(document))
    assert list(shared_database(StorageConfig(data_dir=str(place)))) == []
    document["mcpServers"]["second"] = document["mcpServers"]["mine"]
    (place / ".mcp.json").write_text(json.dumps(document))
    (finding,) = shared_database(StorageConfig(data_dir=str(place)))
    assert finding.message.startswith(f"2 entries of clients start processes that use {place}, and ")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who has locks")
def test_processes_that_have_the_database_open_are_counted(tmp_path: Path) -> None:
    settings = {"tools.memory_enabled": "true", "storage.data_dir": str(tmp_path)}
    with (
        ServerProcess(settings=settings, is_modern=True) as one,
        ServerProcess(settings=settings, is_modern=True) as two,
    ):
        for server in (one, two):
            server.call("memory_store", key="k", value="v")
        assert processes_with(tmp_path / FILE_NAME) == 2
        assert two.leave() == 0
        assert processes_with(tmp_path / FILE_NAME) == 1
        assert one.leave() == 0
    assert processes_with(tmp_path / FILE_NAME) == 0
