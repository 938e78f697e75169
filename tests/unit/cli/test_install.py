"""`dragoman install`: a client is told, and nothing else that it was told is lost."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner, Result

from dragoman.cli import clients
from dragoman.cli.clients import CLIENTS, EntryScope, own_command
from dragoman.cli.commands import app

runner = CliRunner()


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project to stand in, and a home that has seen every client."""
    home = tmp_path / "home"
    for folder in (".config/Claude", ".config/Code/User", ".cursor"):
        (home / folder).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for variable in ("XDG_CONFIG_HOME", "APPDATA", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(variable, raising=False)
    project = tmp_path / "project"
    project.mkdir()
    (project / "greeter.py").write_text("raise SystemExit('nobody may load this')")
    monkeypatch.chdir(project)
    return project


def install(*arguments: str) -> Result:
    return runner.invoke(app, ["install", *arguments])


def installed(*arguments: str) -> Result:
    result = install(*arguments)
    assert result.exit_code == 0, result.stderr
    return result


def entry(project: Path, *more: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-P", "-m", "dragoman", "serve", str(project / "greeter.py"), *more]}


HOME_FILES = {
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "claude-code": ".claude.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json",
}
PROJECT_FILES = {"claude-code": ".mcp.json", "cursor": ".cursor/mcp.json", "vscode": ".vscode/mcp.json"}


@pytest.mark.parametrize("client", HOME_FILES)
def test_each_client_is_told_for_all_of_a_users_projects(project: Path, client: str) -> None:
    said = installed(client, "greeter.py", "--user").stdout
    file = Path.home() / HOME_FILES[client]
    expected = entry(project)
    if client == "vscode":
        assert json.loads(file.read_text()) == {"servers": {"greeter": {"type": "stdio", **expected}}}
    else:
        assert json.loads(file.read_text()) == {"mcpServers": {"greeter": expected}}
    assert said.splitlines() == [f"Added 'greeter' to {file}.", f"Next: {CLIENTS[client].next_step}"]


@pytest.mark.parametrize("client", PROJECT_FILES)
@pytest.mark.parametrize("flags", [(), ("--project",)])
def test_a_client_that_knows_projects_is_told_for_this_one(project: Path, client: str, flags: tuple[str, ...]) -> None:
    installed(client, "greeter.py", *flags)
    document = json.loads((project / PROJECT_FILES[client]).read_text())
    assert list(document[CLIENTS[client].key]) == ["greeter"]


def test_claude_desktop_knows_no_projects(project: Path) -> None:
    installed("claude-desktop", "greeter.py")
    refused = install("claude-desktop", "greeter.py", "--project")
    assert (refused.exit_code, refused.stderr) == (
        2,
        "dragoman: Claude Desktop knows no projects; leave --project out\n",
    )


@pytest.mark.parametrize(
    ("platform", "desktop", "vscode"),
    [
        ("linux", ".config/Claude/claude_desktop_config.json", ".config/Code/User/mcp.json"),
        (
            "darwin",
            "Library/Application Support/Claude/claude_desktop_config.json",
            "Library/Application Support/Code/User/mcp.json",
        ),
        ("win32", "AppData/Roaming/Claude/claude_desktop_config.json", "AppData/Roaming/Code/User/mcp.json"),
    ],
)
def test_each_platform_has_its_places(platform: str, desktop: str, vscode: str) -> None:
    assert CLIENTS["claude-desktop"].file(EntryScope.USER, platform) == Path.home() / desktop
    assert CLIENTS["vscode"].file(EntryScope.USER, platform) == Path.home() / vscode
    assert CLIENTS["cursor"].file(EntryScope.USER, platform) == Path.home() / ".cursor/mcp.json"


def test_places_can_be_moved_by_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in ("XDG_CONFIG_HOME", "APPDATA", "CLAUDE_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    assert CLIENTS["vscode"].file(EntryScope.USER, "linux") == tmp_path / "XDG_CONFIG_HOME/Code/User/mcp.json"
    assert CLIENTS["vscode"].file(EntryScope.USER, "win32") == tmp_path / "APPDATA/Code/User/mcp.json"
    assert CLIENTS["claude-code"].file(EntryScope.USER) == tmp_path / "CLAUDE_CONFIG_DIR/.claude.json"


def test_everything_else_in_the_file_stays_and_the_earlier_one_is_kept(project: Path) -> None:
    file = project / ".mcp.json"
    earlier = {"mcpServers": {"other": {"command": "x"}}, "näme": "ü", "numbers": [1, 2.5, 10**30], "none": None}
    file.write_text(json.dumps(earlier, indent=4, ensure_ascii=False), "utf-8")
    file.chmod(0o640)
    said = installed("claude-code", "greeter.py").stdout
    written = file.read_text("utf-8")
    earlier["mcpServers"]["greeter"] = entry(project)  # type: ignore[index]
    assert json.loads(written) == earlier
    assert '\n    "näme": "ü"' in written
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    backup = Path(f"{file}.bak")
    assert "greeter" not in backup.read_text()
    assert stat.S_IMODE(backup.stat().st_mode) == 0o640
    assert f"The earlier file is {backup}." in said
    assert sorted(each.name for each in project.iterdir()) == [".mcp.json", ".mcp.json.bak", "greeter.py"]


@pytest.mark.parametrize("before", ['{\r\n\t"a": 1\r\n}\r\n', '\ufeff{"a": 1}', '{"a": "\\ud800"}'])
def test_the_manner_of_a_file_is_kept(project: Path, before: str) -> None:
    file = project / ".mcp.json"
    file.write_bytes(before.encode("utf-8", "surrogatepass"))
    installed("claude-code", "greeter.py")
    written = file.read_bytes()
    assert clients.parse(written)["a"] == clients.parse(before.encode("utf-8", "surrogatepass"))["a"]
    assert (b"\r\n\t" in written) == ("\r\n\t" in before)


def written_file(project: Path) -> tuple[bytes, int, int]:
    """Differs when the file was written or replaced, and not when it was only read."""
    file = project / ".mcp.json"
    return file.read_bytes(), file.stat().st_ino, file.stat().st_mtime_ns


def test_an_entry_that_is_there_already_is_left_alone(project: Path) -> None:
    installed("claude-code", "greeter.py")
    before = written_file(project)
    assert installed("claude-code", "greeter.py").stdout == ".mcp.json has 'greeter' as it is already.\n"
    assert written_file(project) == before
    assert not (project / ".mcp.json.bak").exists()


@pytest.mark.slow
def test_another_entry_of_the_same_name_is_replaced_only_by_force(project: Path) -> None:
    installed("claude-code", "greeter.py")
    refused = install("claude-code", "greeter.py", "--env", "A=b=c")
    assert refused.exit_code == 1
    assert "it has another 'greeter'; --force replaces it" in refused.stderr
    assert json.loads(refused.stdout)["mcpServers"]["greeter"]["env"] == {"A": "b=c"}
    assert json.loads((project / ".mcp.json").read_text()) == {"mcpServers": {"greeter": entry(project)}}
    installed("claude-code", "greeter.py", "--env", "A=b=c", "--force")
    installed("claude-code", "greeter.py", "--force")
    assert json.loads((project / ".mcp.json").read_text()) == {"mcpServers": {"greeter": entry(project)}}
    assert {each.name for each in project.glob("*.bak*")} == {".mcp.json.bak", ".mcp.json.bak2"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'// a comment\n{"servers": {}}', "it is not plain JSON"),
        (b'{"servers": {},}', "it is not plain JSON"),
        (b"[]", "it does not hold an object"),
        (b"null", "it does not hold an object"),
        (b'{"mcpServers": []}', "its 'mcpServers' is not an object"),
        (b'{"mcpServers": null}', "its 'mcpServers' is not an object"),
        (b'{"a": 1, "a": 2}', "a key is in it twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b"\xff\xfe", "can't decode"),
        (b'{"a":' * 100_000, "it is nested too deeply"),
    ],
)
def test_a_file_that_could_not_be_written_back_is_not_touched(project: Path, content: bytes, reason: str) -> None:
    file = project / ".mcp.json"
    file.write_bytes(content)
    refused = install("claude-code", "greeter.py")
    assert refused.exit_code == 1
    assert reason in refused.stderr
    assert "Traceback" not in refused.stderr
    assert json.loads(refused.stdout) == {"mcpServers": {"greeter": entry(project)}}
    assert file.read_bytes() == content
    assert sorted(each.name for each in project.iterdir()) == [".mcp.json", "greeter.py"]


@pytest.mark.parametrize("content", ["", "  \n"])
def test_an_empty_file_is_filled(project: Path, content: str) -> None:
    (project / ".mcp.json").write_text(content)
    installed("claude-code", "greeter.py")
    assert json.loads((project / ".mcp.json").read_text()) == {"mcpServers": {"greeter": entry(project)}}


def test_a_link_to_the_users_own_configuration_is_followed_and_stays_a_link(project: Path) -> None:
    real = project.parent / "dotfiles.json"
    real.write_text('{"a": 1}')
    link = Path.home() / ".cursor" / "mcp.json"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(real)
    installed("cursor", "greeter.py", "--user")
    assert link.is_symlink()
    assert json.loads(real.read_text())["a"] == 1
    assert Path(f"{real}.bak").read_text() == '{"a": 1}'


def test_a_link_in_a_project_is_not_followed(project: Path) -> None:
    outside = project.parent / "outside.json"
    outside.write_text('{"a": 1}')
    (project / ".mcp.json").symlink_to(outside)
    refused = install("claude-code", "greeter.py")
    assert refused.exit_code == 1
    assert ".mcp.json was not changed: .mcp.json is a link" in refused.stderr
    assert json.loads(refused.stdout) == {"mcpServers": {"greeter": entry(project)}}
    assert outside.read_text() == '{"a": 1}'
    assert sorted(each.name for each in outside.parent.glob("outside*")) == ["outside.json"]


@pytest.mark.parametrize("leads_to", ["outside", "gone"])
def test_a_folder_in_a_project_that_is_a_link_is_not_followed(project: Path, leads_to: str) -> None:
    (project.parent / "outside").mkdir()
    (project / ".cursor").symlink_to(project.parent / leads_to)
    refused = install("cursor", "greeter.py")
    assert refused.exit_code == 1
    assert ".cursor/mcp.json was not changed: .cursor is a link" in refused.stderr
    assert list((project.parent / "outside").iterdir()) == []
    assert not (project.parent / "gone").exists()


@pytest.mark.slow
def test_links_that_lead_nowhere_folders_and_pipes_are_refused(project: Path) -> None:
    link = Path.home() / ".cursor" / "mcp.json"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(link)
    assert "it is a link that leads nowhere" in install("cursor", "greeter.py", "--user").stderr
    link.unlink()
    link.symlink_to(project / "gone" / "deep" / "file.json")
    assert "No such file or directory" in install("cursor", "greeter.py", "--user").stderr
    file = project / ".mcp.json"
    file.mkdir()
    assert "Is a directory" in install("claude-code", "greeter.py").stderr
    file.rmdir()
    os.mkfifo(file)
    assert "it is not a regular file" in install("claude-code", "greeter.py").stderr
    (project / ".cursor").touch()
    refused = install("cursor", "greeter.py")
    assert refused.exit_code == 1
    assert json.loads(refused.stdout)


def test_a_file_that_may_not_be_changed_stays_as_it_is(project: Path) -> None:
    file = project / ".mcp.json"
    file.write_text("{}")
    project.chmod(0o500)
    try:
        is_root = os.access(project, os.W_OK)
        result = install("claude-code", "greeter.py")
        assert (result.exit_code, file.read_text() == "{}") == ((0, False) if is_root else (1, True))
        assert is_root or "Permission denied" in result.stderr
    finally:
        project.chmod(0o700)


def test_a_file_that_changes_meanwhile_is_not_overwritten(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = project / ".mcp.json"
    file.write_text("{}")
    fsync = os.fsync

    def meanwhile(descriptor: int) -> None:
        fsync(descriptor)
        file.write_text('{"theirs": 1}')

    monkeypatch.setattr(os, "fsync", meanwhile)
    refused = install("claude-code", "greeter.py")
    assert refused.exit_code == 1
    assert "changed by somebody else" in refused.stderr
    assert file.read_text() == '{"theirs": 1}'
    assert sorted(each.name for each in project.iterdir()) == [".mcp.json", "greeter.py"]


def test_a_client_that_was_never_started_is_not_given_a_file(project: Path) -> None:
    (Path.home() / ".cursor").rmdir()
    refused = install("cursor", "greeter.py", "--user")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "is Cursor installed, and has it been started once?" in refused.stderr
    assert not (Path.home() / ".cursor").exists()


def test_an_entry_can_be_printed_instead(project: Path) -> None:
    (project / "my.toml").touch()
    printed = installed(
        "mcp-json", "greeter.py:tools", "--name", "mine", "--config", "my.toml", "--env", "A=1", "--env", "B="
    )
    expected = {
        "command": sys.executable,
        "args": [
            "-P",
            "-m",
            "dragoman",
            "serve",
            f"{project / 'greeter.py'}:tools",
            "--config",
            str(project / "my.toml"),
        ],
        "env": {"A": "1", "B": ""},
    }
    assert json.loads(printed.stdout) == {"mcpServers": {"mine": expected}}
    assert json.loads(installed("vscode", "--print").stdout) == {
        "servers": {"dragoman": {"type": "stdio", "command": sys.executable, "args": ["-P", "-m", "dragoman", "serve"]}}
    }
    assert sorted(each.name for each in project.iterdir()) == ["greeter.py", "my.toml"]


def test_a_module_is_found_from_wherever_the_client_starts_the_server(project: Path) -> None:
    printed = json.loads(installed("mcp-json", "greeter:tools").stdout)["mcpServers"]["greeter"]
    assert printed["args"][-3:] == ["greeter:tools", "--app-dir", str(project)]
    assert "env" not in printed  # PYTHONPATH would put the project before everything that is installed.
    printed = json.loads(installed("mcp-json", "some.package.tools").stdout)["mcpServers"]["tools"]
    assert printed["args"][-1] == "some.package.tools"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["mcp-json", "gone.py"], "there is no file gone.py"),
        (["mcp-json", "--config", "gone.toml"], "there is no file gone.toml"),
        (["mcp-json", "--env", "A"], "--env 'A' is not NAME=VALUE"),
        (["mcp-json", "--env", "=A"], "--env '=A' is not NAME=VALUE"),
        (["emacs"], "emacs"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: list[str], reason: str) -> None:
    refused = install(*arguments)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert reason in refused.stderr


def test_settings_that_the_client_would_not_find_are_pointed_out(project: Path) -> None:
    (project / "dragoman.toml").touch()
    assert "name them with --config" in installed("mcp-json").stderr
    assert installed("mcp-json", "--config", "dragoman.toml").stderr == ""


def test_a_file_with_variables_is_for_its_owner_alone(project: Path) -> None:
    installed("claude-code", "greeter.py", "--env", "TOKEN=x")
    assert stat.S_IMODE((project / ".mcp.json").stat().st_mode) == 0o600


def test_the_script_that_was_started_is_the_one_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "dragoman"
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert own_command() == [sys.executable, "-P", "-m", "dragoman"]
    script.touch(0o700)
    assert own_command() == [str(script)]


def test_a_backup_is_a_new_file_even_where_a_link_to_nowhere_stands(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (project / ".mcp.json").write_text("{}")
    (project / ".mcp.json").chmod(0o600)
    (project / ".mcp.json.bak").symlink_to(outside)
    assert install("claude-code", "greeter.py").exit_code == 0
    assert not outside.exists()
    kept = project / ".mcp.json.bak2"
    assert kept.read_text() == "{}"
    assert kept.stat().st_mode & 0o777 == 0o600


def test_numbers_that_could_not_be_written_back_are_left_alone(project: Path) -> None:
    before = '{"mcpServers": {"other": {"command": "x", "timeout": 1e400}}}'
    (project / ".mcp.json").write_text(before)
    refused = install("claude-code", "greeter.py")
    assert refused.exit_code == 1
    assert "1e400" in refused.stderr
    assert (project / ".mcp.json").read_text() == before


def test_a_user_without_a_home_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(user: int) -> NoReturn:
        raise KeyError(user)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    refused = install("claude-desktop")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "there is no home directory" in refused.stderr


def test_a_home_that_cannot_be_looked_into_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/tmp/" + 300 * "x")
    refused = install("claude-desktop")
    assert refused.exit_code == 1
    assert "is not there" in refused.stderr
