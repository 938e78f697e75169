"""`python -m apcore_mcp` as a process: its flags, its refusals, its log, its end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import apcore_mcp
from tests.support import forking
from tests.support.forking import BRIDGE, DRAGOMAN
from tests.support.processes import HANDSHAKE, LONG, environment, line, running
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXTENSIONS = str(ROOT / "examples" / "extensions")
MODULES = ("notes.forget", "text.proofread", "text.slugify", "weather.dew_point", "weather.windchill")


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"text": True, "timeout": 3 * PATIENCE, "stdin": subprocess.DEVNULL, **options}
    return forking.run([*BRIDGE, *arguments], env=environment(), **options)


def messages(stderr: str) -> list[str]:
    return [json.loads(each)["message"] for each in stderr.splitlines()]


@pytest.mark.requirement("FR-CLI-003", "FR-CLI-004", "FR-CLI-005", "FR-CLI-006", "FR-CLI-007", "SRS-API-05")
def test_help_shows_every_flag_with_its_type_default_and_purpose() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    told = re.sub(r"\s+", " ", done.stdout)
    for flag, default in (
        ("--extensions-dir PATH", None),
        ("--transport {stdio,streamable-http,sse}", "stdio"),
        ("--host STR", "127.0.0.1"),
        ("--port INT", "8000"),
        ("--name STR", "apcore-mcp"),
        ("--version STR", apcore_mcp.__version__),
        ("--log-level {DEBUG,INFO,WARNING,ERROR}", "INFO"),
        ("--explorer", "False"),
        ("--explorer-prefix STR", "/explorer"),
        ("--allow-execute", "False"),
        ("--allowed-host NAME", None),
        ("--config PATH", None),
    ):
        purpose = rf"[a-z][^()]+{'' if default is None else re.escape(f'(default: {default})')} (--|$)"
        assert re.search(rf" {re.escape(flag)} {purpose}", f"{told.split('options:')[1].rstrip()} "), flag


@pytest.mark.requirement("FR-CLI-001", "FR-CLI-003", "FR-CLI-004", "FR-CLI-006", "FR-CLI-008", "UC-006")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "the following arguments are required: --extensions-dir"),
        (("--extensions-dir", EXTENSIONS, "--transport", "websocket"), "invalid choice: 'websocket'"),
        (("--extensions-dir", EXTENSIONS, "--transport", "http"), "invalid choice: 'http'"),
        (("--extensions-dir", EXTENSIONS, "--log-level", "LOUD"), "invalid choice: 'LOUD'"),
        (("--extensions-dir", EXTENSIONS, "--port", "abc"), "invalid int value: 'abc'"),
        (("--extensions-dir", EXTENSIONS, "--colour", "red"), "unrecognized arguments: --colour red"),
    ],
)
def test_a_command_line_that_cannot_be_understood_is_exit_code_2(arguments: tuple[str, ...], reason: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr


@pytest.mark.requirement("FR-CLI-002", "FR-CLI-004", "FR-CLI-005", "FR-CLI-008", "SRS-API-05", "UC-006")
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--extensions-dir", "/no/such/folder"), "extensions directory does not exist: /no/such/folder"),
        (("--extensions-dir", __file__), f"extensions path is not a directory: {__file__}"),
        (("--transport", "sse", "--port", "0"), "port must be between 1 and 65535"),
        (("--transport", "streamable-http", "--port", "70000"), "port must be between 1 and 65535"),
        (("--name", ""), "server name must not be empty"),
        (("--name", "x" * 256), "name must not exceed 255 characters"),
        (("--version", ""), "version must not be empty"),
        (("--transport", "sse", "--host", ""), "Host must not be empty"),
    ],
)
def test_a_value_that_cannot_be_used_is_exit_code_1(arguments: tuple[str, ...], error: str) -> None:
    given = arguments if "--extensions-dir" in arguments else ("--extensions-dir", EXTENSIONS, *arguments)
    done = run(*given)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"Error: {error}\n")


@pytest.mark.requirement("FR-CLI-008", "UC-006")
def test_a_port_that_is_taken_is_exit_code_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run("--extensions-dir", EXTENSIONS, "--transport", "streamable-http", "--port", port)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: the server cannot start: ")
    assert "in use" in done.stderr


@pytest.mark.requirement("FR-CLI-001", "FR-CLI-004", "FR-CLI-008", "FR-EXPLORER-001", "FR-LOG-001", "FR-TRANSPORT-005")
def test_it_serves_stdio_until_the_pipe_is_closed_whatever_host_and_port_are() -> None:
    done = run("--extensions-dir", EXTENSIONS, "--host", "", "--port", "0", "--explorer", "--allow-execute")
    assert (done.returncode, done.stdout) == (0, "")
    assert messages(done.stderr) == ["apcore-mcp server started: 5 tools registered, transport=stdio"]


@pytest.mark.requirement("FR-CLI-001", "FR-SERVER-006", "UC-006")
def test_a_folder_without_modules_is_served_with_a_warning(tmp_path: Path) -> None:
    place = tmp_path / "with space"
    place.mkdir()
    done = run("--extensions-dir", "with space", cwd=tmp_path)
    assert done.returncode == 0
    assert messages(done.stderr)[-2:] == [
        "No modules registered; server starting with zero tools",
        "apcore-mcp server started: 0 tools registered, transport=stdio",
    ]


@pytest.mark.requirement("FR-CLI-006", "FR-LOG-002", "FR-LOG-005")
@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("DEBUG", {"Tool call: text.slugify", "tool call completed", "connection initialized", "connection closed"}),
        ("INFO", {"tool call completed"}),
        ("WARNING", set()),
    ],
)
def test_the_level_decides_what_is_logged(level: str, expected: set[str]) -> None:
    call = line("tools/call", {"name": "text.slugify", "arguments": {"title": "Hi"}}, 1)
    arguments = [*BRIDGE, "--extensions-dir", EXTENSIONS, "--log-level", level]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running(arguments, env=environment(), **pipes) as process:
        process.stdin.write(HANDSHAKE + call)  # type: ignore[union-attr]
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]  # type: ignore[union-attr]
        process.stdin.close()  # type: ignore[union-attr]
        process.wait(PATIENCE)
        said = set(messages(process.stderr.read().decode()))  # type: ignore[union-attr]
    assert answers[1]["result"]["content"] == [{"type": "text", "text": '{"slug": "hi"}'}]
    assert said - {"apcore-mcp server started: 5 tools registered, transport=stdio"} == expected


MODULE = """
from __future__ import annotations
from pydantic import BaseModel

class Tree(BaseModel):
    name: str
    {field}

class Out(BaseModel):
    name: str

class Plant:
    description = "Plant a tree"
    input_schema = Tree
    output_schema = Out

    def execute(self, inputs, context):
        return {{"name": inputs["name"]}}
"""


@pytest.mark.requirement("NFR-REL-002", "FR-SERVER-011")
def test_one_module_among_five_that_refers_to_itself_is_left_out_with_a_warning(tmp_path: Path) -> None:
    for number in range(5):
        field = "branches: list[Tree] = []" if number == 2 else "height: int = 1"
        (tmp_path / f"plant{number}.py").write_text(MODULE.format(field=field))
    done = run("--extensions-dir", str(tmp_path))
    assert done.returncode == 0
    said = [json.loads(each) for each in done.stderr.splitlines()]
    assert said[-1]["message"] == "apcore-mcp server started: 4 tools registered, transport=stdio"
    (warning,) = [each for each in said if each["level"] == "warn"]
    assert warning["message"].startswith("Module plant2 skipped: Circular reference: ")


LOUD = """
import os
from apcore.decorator import module

print("loaded")
os.write(1, b"loaded quickly\\n")

@module(id="loud.speak")
def speak(text: str) -> str:
    print("speaking")
    os.system("echo from a child")
    return text
"""


@pytest.mark.requirement("FR-TRANSPORT-001")
def test_nothing_that_a_module_prints_reaches_the_client(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    call = line("tools/call", {"name": "loud.speak", "arguments": {"text": "hi"}}, 1)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running([*BRIDGE, "--extensions-dir", str(tmp_path)], env=environment(), **pipes) as process:
        process.stdin.write(HANDSHAKE + call)  # type: ignore[union-attr]
        lines = [process.stdout.readline() for _ in range(2)]  # type: ignore[union-attr]
        process.stdin.close()  # type: ignore[union-attr]
        rest, said = process.stdout.read(), process.stderr.read()  # type: ignore[union-attr]
        assert process.wait(PATIENCE) == 0
    assert [json.loads(each)["id"] for each in lines] == [0, 1]
    assert rest == b""
    for words in (b"loaded\n", b"loaded quickly\n", b"speaking\n", b"from a child\n"):
        assert words in said


@pytest.mark.requirement("FR-CLI-005", "FR-CLI-008", "FR-SERVER-004", "NFR-REL-001", "UC-006")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_an_orderly_stop(number: int) -> None:
    arguments = [*BRIDGE, "--extensions-dir", EXTENSIONS, "--name", "my-tools", "--version", "1.2.3"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with running(arguments, env=environment(LONG), **pipes) as process:
        process.stdin.write(HANDSHAKE)  # type: ignore[union-attr]
        answer = json.loads(process.stdout.readline())  # type: ignore[union-attr]
        assert answer["result"]["serverInfo"] == {"name": "my-tools", "version": "1.2.3"}
        os.kill(process.pid, number)
        assert process.wait(PATIENCE) == 0


@pytest.mark.requirement("SRS-API-06")
@pytest.mark.parametrize("arguments", [("--help",), ("--extensions-dir", "/no/such/folder")])
def test_the_installed_script_is_the_same_program(arguments: tuple[str, ...]) -> None:
    script = Path(sys.executable).with_name("apcore-mcp")
    done = subprocess.run([script, *arguments], capture_output=True, text=True, env=environment(), timeout=PATIENCE)
    module = run(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (module.returncode, module.stdout, module.stderr)
    assert done.stdout.startswith("usage: apcore-mcp ") is (done.returncode == 0)


def test_dragoman_serves_modules_beside_native_tools(tmp_path: Path) -> None:
    native = tmp_path / "native.py"
    native.write_text("from dragoman import tool\n\n@tool\ndef add(a: int, b: int) -> int:\n    return a + b\n")
    command = [*DRAGOMAN, "serve"]
    calls = line("tools/list", {}, 1) + line("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, 2)
    calls += line("tools/call", {"name": "text.slugify", "arguments": {"title": "Hi"}}, 3)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    for target, names in ((str(native), ["add", "health"]), (None, ["health"])):
        arguments = [*command, *([target] if target else []), "--extensions-dir", EXTENSIONS]
        with running(arguments, env=environment(), **pipes) as process:
            process.stdin.write(HANDSHAKE + calls)  # type: ignore[union-attr]
            answers = {}
            while len(answers) < 4:
                answer = json.loads(process.stdout.readline())  # type: ignore[union-attr]
                answers[answer["id"]] = answer["result"]
        listed = [each["name"] for each in answers[1]["tools"]]
        assert listed == sorted(
            [*names, "notes.forget", "text.proofread", "text.slugify", "weather.dew_point", "weather.windchill"]
        )
        assert answers[2]["isError"] is (target is None)
        assert answers[3]["content"][0]["text"] == '{"slug": "hi"}'


@pytest.mark.parametrize("folder", ["/no/such/folder", __file__])
def test_dragoman_refuses_a_folder_that_there_is_not(folder: str) -> None:
    command = [*DRAGOMAN, "serve", "--extensions-dir", folder]
    done = forking.run(command, text=True, env=environment(), timeout=PATIENCE)
    assert (done.returncode, f"There is no folder {folder}" in done.stderr) == (2, True)
