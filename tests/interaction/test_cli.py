"""The commands as processes of their own: what a person or a script sees."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.answers import error_in
from tests.support.processes import ServerProcess, environment
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TOOLS = str(ROOT / "examples" / "tools.py")


def dragoman(*arguments: str, cwd: Path, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    home = {"HOME": str(cwd), "XDG_CONFIG_HOME": str(cwd / ".config"), "XDG_DATA_HOME": str(cwd / "data")}
    return subprocess.run(
        [sys.executable, "-m", "dragoman", *arguments],
        cwd=cwd,
        input=stdin,
        env=environment(extra={**home, **environ}),
        capture_output=True,
        timeout=PATIENCE,
    )


def test_settings_are_shown_checked_and_described(tmp_path: Path) -> None:
    (tmp_path / "dragoman.toml").write_text('[logging]\nlevel = "warn"\n')
    shown = dragoman("config", "show", "--changed", "--json", cwd=tmp_path, DRAGOMAN_HTTP__PORT="81")
    assert json.loads(shown.stdout)["settings"] == {
        "logging.level": {"value": "warn", "source": "dragoman.toml"},
        "http.port": {"value": 81, "source": "DRAGOMAN_HTTP__PORT"},
    }
    assert dragoman("config", "check", cwd=tmp_path).stdout == b"dragoman.toml: OK\n"
    assert json.loads(dragoman("config", "schema", cwd=tmp_path).stdout)["title"] == "Dragoman's settings"


COMMANDS = (
    "config check",
    "config show",
    "serve",
    "tools list",
    "resources list",
    "prompts list",
    "agents list",
    "messages list",
    "ledger stats",
    "call echo",
    "guards",
    "top",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_takes_from_a_found_file_what_could_open_a_server(tmp_path: Path, command: str) -> None:
    (tmp_path / "dragoman.toml").write_text('[http]\nallowed_origins = ["*"]\n')
    refused = dragoman(*command.split(), cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"http.allowed_origins: a file that is only found in the working directory cannot set this" in refused.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /dev/full elsewhere")
@pytest.mark.parametrize(
    ("place", "said", "code"),
    [
        ("/dev/full", "the answer cannot be written: No space left on device", 1),
        ("&-", "stdout is closed: there is nowhere to answer to", 2),
    ],
)
def test_where_nothing_can_be_answered_the_reason_is_said_in_a_line(place: str, said: str, code: int) -> None:
    for command in ("tools list", "call echo message=hi", "config show"):
        line = f"exec {sys.executable} -m dragoman {command} >{place}"
        ended = subprocess.run(["sh", "-c", line], env=environment(), stderr=subprocess.PIPE, timeout=PATIENCE)
        assert (ended.stderr.decode(), ended.returncode) == (f"dragoman: {said}\n", code)


def test_the_example_tools_are_listed_shown_and_called(tmp_path: Path) -> None:
    listed = dragoman("tools", "list", TOOLS, cwd=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, b"")
    assert re.search(rb"^roll_dice +Rolls dice, and adds them up\.$", listed.stdout, re.MULTILINE)
    assert b"default 6; sides of each" in dragoman("tools", "show", "roll_dice", TOOLS, cwd=tmp_path).stdout
    called = dragoman("call", "add", "a=40", "b=2", "--target", TOOLS, cwd=tmp_path)
    assert (called.returncode, called.stdout, called.stderr) == (0, b"42.0\n", b"")
    called = dragoman("call", "count_words", "--json", "-", "--target", TOOLS, cwd=tmp_path, stdin=b'{"text": "a b a"}')
    assert json.loads(called.stdout) == {"a": 2, "b": 1}
    failed = dragoman("call", "divide", "dividend=1", "divisor=0", "--target", TOOLS, cwd=tmp_path)
    assert (failed.returncode, failed.stdout) == (1, b"")
    assert failed.stderr == b'dragoman: INVALID_ARGUMENT: Nothing can be divided by zero\n  field: "divisor"\n'


def test_what_is_installed_can_be_started_and_the_doctor_agrees(tmp_path: Path) -> None:
    (tmp_path / ".config" / "Claude").mkdir(parents=True)
    told = dragoman("install", "claude-desktop", TOOLS, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    written = json.loads((tmp_path / ".config" / "Claude" / "claude_desktop_config.json").read_text())
    entry: dict[str, Any] = written["mcpServers"]["tools"]
    request = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": request}).encode()
    started = subprocess.run(
        [entry["command"], *entry["args"]],
        input=line + b"\n",
        cwd="/",
        env=environment(),
        capture_output=True,
        timeout=PATIENCE,
    )
    assert json.loads(started.stdout.splitlines()[0])["result"]["serverInfo"]["name"] == "dragoman"
    before = sorted(path for path in tmp_path.rglob("*"))
    report = json.loads(dragoman("doctor", "--json", cwd=tmp_path).stdout)
    assert [each for each in report["findings"] if each["verdict"] == "problem"] == []
    assert any("'tools' can be started" in each["message"] for each in report["findings"])
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["install", "--help"], ["--show-completion"]])
def test_help_and_completion_are_offered(arguments: list[str], tmp_path: Path) -> None:
    shell = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"} if "completion" in arguments[0] else {}
    arguments = [*arguments, "bash"] if shell else arguments
    helped = dragoman(*arguments, cwd=tmp_path, **shell)
    assert helped.returncode == 0, helped.stderr
    assert b"dragoman" in helped.stdout


def tool(name: str, body: str) -> str:
    return f"@tool\ndef {name}() -> str:\n    {body}\n"


def write(file: Path, *parts: str) -> None:
    """As editors do: all at once."""
    fresh = file.with_suffix(".fresh")
    fresh.write_text("import os, sys\nfrom dragoman import tool\n" + "".join(parts))
    os.replace(fresh, file)


def text_of(result: dict[str, Any]) -> Any:
    assert result["isError"] is False, result
    return result["content"][0]["text"]


def changes(server: ServerProcess, times: int) -> None:
    """Return when the client has been told so many times that the list has changed."""
    wanted = b'"notifications/tools/list_changed"'
    server.output.wait_until(lambda lines: sum(wanted in each for each in lines) >= times or None)


def test_edited_tools_are_served_without_a_new_connection(tmp_path: Path) -> None:
    file = tmp_path / "edited_tools.py"
    (tmp_path / "edited_neighbour.py").write_text("WORD = 'first'")
    write(file, "import edited_neighbour\n", tool("word", "return edited_neighbour.WORD"), tool("old", "return 'x'"))
    with ServerProcess(str(file), "--reload") as server:
        server.handshake()
        assert text_of(server.call("word")) == "first"

        (tmp_path / "edited_neighbour.py").write_text("WORD = 'second'")
        changes(server, 1)
        assert text_of(server.call("word")) == "second"

        write(file, tool("word", "return 'third'"), tool("new", "return 'new'"))
        changes(server, 2)
        assert [each["name"] for each in server.list_tools()] == ["health", "new", "word"]
        assert (text_of(server.call("word")), text_of(server.call("new"))) == ("third", "new")
        assert error_in(server.call("old"))["code"] == "NOT_FOUND"

        write(file, "raise RuntimeError('half an edit')\n")
        server.wait_for_log("tools not reloaded")
        assert text_of(server.call("new")) == "new"

        write(file, tool("word", "return 'fourth'"))
        changes(server, 3)
        assert text_of(server.call("word")) == "fourth"
        assert server.leave() == 0
        messages = server.messages()
        assert sum(each.get("method") == "notifications/tools/list_changed" for each in messages) == 3
        (problem,) = [each for each in server.log() if each["message"] == "tools not reloaded"]
        assert problem["error"]["message"] == "RuntimeError: half an edit"


def test_a_call_under_way_ends_with_the_handler_that_it_began_with(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    file = tmp_path / "edited_tools.py"
    wait = f"print('under way', file=sys.stderr); open({str(tmp_path / 'pipe')!r}).read(); return "
    write(file, tool("word", wait + "'old'"))
    with ServerProcess(str(file), "--reload") as server:
        server.handshake()
        waiting = server.begin_call("word")
        server.errors.wait_until(lambda lines: any(b"under way" in each for each in lines) or None)
        write(file, tool("word", "return 'new'"))
        changes(server, 1)
        assert text_of(server.call("word")) == "new"
        (tmp_path / "pipe").write_text("go on")
        assert text_of(server.answer(waiting)["result"]) == "old"
        assert server.leave() == 0


def test_a_resource_that_an_edit_adds_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "edited_tools.py"
    write(file, tool("word", "return 'a'"))
    with ServerProcess(str(file), "--reload") as server:
        assert "resources" in server.handshake()["result"]["capabilities"]
        thing = "from dragoman import resource\n@resource('x:y')\ndef thing() -> str:\n    return 'read'\n"
        write(file, thing)
        server.wait_for_log("tools reloaded")
        assert server.request("resources/read", {"uri": "x:y"})["result"]["contents"][0]["text"] == "read"
        assert server.leave() == 0


def test_edited_modules_of_a_folder_are_served_without_a_new_connection(tmp_path: Path) -> None:
    folder = tmp_path / "extensions"
    folder.mkdir()
    module = "from apcore.decorator import module\n@module(id='a.{0}')\ndef f() -> str:\n    return '{1}'\n"
    write(folder / "first.py", module.format("word", "first"))
    with ServerProcess("--extensions-dir", str(folder), "--reload") as server:
        server.handshake()
        assert json.loads(text_of(server.call("a.word"))) == {"result": "first"}

        write(folder / "first.py", module.format("word", "second"))
        changes(server, 1)
        assert json.loads(text_of(server.call("a.word"))) == {"result": "second"}

        (folder / "deeper").mkdir()
        write(folder / "deeper" / "more.py", module.format("more", "more"))
        changes(server, 2)
        assert [each["name"] for each in server.list_tools()] == ["a.more", "a.word", "health"]

        write(folder / "first.py", "raise SystemExit\n")
        changes(server, 3)
        assert [each["name"] for each in server.list_tools()] == ["a.more", "health"]
        assert server.leave() == 0
        reloads = [each for each in server.log() if each["message"] == "tools reloaded"]
        assert [(each["extensions"], each["tools"]) for each in reloads] == [(str(folder), n) for n in (1, 2, 1)]


def test_reloading_needs_something_to_reload(tmp_path: Path) -> None:
    refused = dragoman("serve", "--reload", cwd=tmp_path)
    assert (refused.returncode, refused.stderr) == (2, b"dragoman: --reload needs a TARGET, or --extensions-dir\n")
