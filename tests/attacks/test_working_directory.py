"""Files in the working directory, or beside a target, with the names of modules that the server imports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.answers import text_in
from tests.support.http_process import HttpProcess
from tests.support.http_wire import message, modern_call
from tests.support.processes import ServerProcess, environment
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

SCRIPT = str(Path(sys.executable).with_name("dragoman"))
INSTALLED = sorted(name for name in packages_distributions() if name.isidentifier())
STANDARD = sorted(sys.stdlib_module_names)
OPTIONAL = [
    "brotli",
    "curio",
    "exceptiongroup",
    "gunicorn",
    "h2",
    "orjson",
    "simplejson",
    "socksio",
    "trio",
    "zstandard",
]
TOOLS = """
from dragoman import resource, tool
from helper import word


@resource("my://word")
def read() -> str:
    return word


@tool
def greet() -> str:
    import another_helper  # While the server runs.

    return word + another_helper.word
"""


class Folder:
    """A folder with a target, its two helpers, and files that leave a trace when they are run."""

    def __init__(self, path: Path) -> None:
        self.path = path / "folder"
        self.traces = path / "traces"
        self.target = self.path / "my_tools.py"
        for each in (self.path, self.traces):
            each.mkdir()
        self.target.write_text(TOOLS)
        (self.path / "helper.py").write_text("word = 'hello '")
        (self.path / "another_helper.py").write_text("word = 'there'")

    def set_traps(self, names: Iterable[str]) -> None:
        for name in names:
            trace = str(self.traces / name)
            (self.path / f"{name}.py").write_text(f"open({trace!r}, 'w').close()\nraise SystemExit('a trap')")

    def sprung(self) -> list[str]:
        return sorted(each.name for each in self.traces.iterdir())

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        home = {"HOME": str(self.path), "XDG_CONFIG_HOME": str(self.path), "XDG_DATA_HOME": str(self.path)}
        return subprocess.run(
            command,
            cwd=self.path,
            env=environment(extra=home),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.set_traps([*STANDARD, *INSTALLED, *OPTIONAL])
    return made


def test_a_server_on_stdio_runs_no_file_beside_its_target_but_those_that_the_target_imports(folder: Folder) -> None:
    with ServerProcess(str(folder.target), cwd=folder.path) as server:
        server.handshake()
        assert server.call("greet")["content"][0]["text"] == "hello there"
        assert (
            server.request("resources/list")["result"]["resources"][0]["uri"] == "my://word"
        )  # From the SDK, which is loaded now.
        assert server.leave() == 0
        (warned,) = [each for each in server.log() if "not used" in each["message"]]
    assert "rename them" in warned["message"]
    assert folder.sprung() == []


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_on_http_runs_no_file_beside_its_target_but_those_that_the_target_imports(
    folder: Folder, workers: str
) -> None:
    with HttpProcess(str(folder.target), "--workers", workers, cwd=folder.path) as server:
        assert server.ask(modern_call("greet")).json["result"]["content"][0]["text"] == "hello there"
        session = server.open()
        assert session.call("greet").message["result"]["content"][0]["text"] == "hello there"
        assert session.post(message("resources/list", id=2)).message["result"]["resources"][0]["uri"] == "my://word"
        assert server.get("/metrics").status == 200
    assert folder.sprung() == []


def test_a_server_of_a_module_runs_no_other_file_in_its_folder(folder: Folder, tmp_path: Path) -> None:
    with HttpProcess("my_tools", "--workers", "2", "--app-dir", str(folder.path), cwd=tmp_path) as server:
        session = server.open()
        assert session.call("greet").message["result"]["content"][0]["text"] == "hello there"
        assert session.post(message("resources/list", id=2)).message["result"]["resources"][0]["uri"] == "my://word"
    assert folder.sprung() == []


def entry_of(folder: Folder) -> list[str]:
    """The command that `install` writes, from an interpreter that has no script."""
    printed = folder.run(sys.executable, "-P", "-m", "dragoman", "install", "mcp-json", "my_tools.py").stdout
    ((_, entry),) = json.loads(printed)["mcpServers"].items()
    command = [entry["command"], *entry["args"]]
    return command[: command.index("serve")]


def script(folder: Folder) -> list[str]:
    return [SCRIPT]


@pytest.mark.parametrize("start", [entry_of, script])
@pytest.mark.parametrize("arguments", [("call", "greet", "--target", "my_tools.py"), ("doctor",), ("--version",)])
def test_no_command_runs_a_file_in_the_working_directory(
    folder: Folder, start: Callable[[Folder], list[str]], arguments: tuple[str, ...]
) -> None:
    done = folder.run(*start(folder), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert folder.sprung() == []


@pytest.mark.parametrize(
    "command",
    [
        ("dragoman", "call", "greet", "--target", "my_tools.py"),
        ("dragoman", "call", "greet", "--target", "my_tools"),
        ("dragoman", "doctor"),
        ("apcore_mcp", "--help"),
    ],
)
def test_started_with_python_m_no_file_there_replaces_an_installed_package(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    folder = Folder(tmp_path)
    folder.set_traps(name for name in INSTALLED if name not in ("dragoman", "apcore_mcp", "coverage"))
    done = folder.run(sys.executable, "-m", *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert folder.sprung() == []


def test_modules_of_apcore_replace_nothing_that_the_server_imports(tmp_path: Path) -> None:
    extensions = Path(__file__).parents[2] / "examples" / "extensions"
    folder = Folder(tmp_path)
    folder.set_traps([*STANDARD, *INSTALLED, *OPTIONAL])
    with HttpProcess(None, "--extensions-dir", str(extensions), cwd=folder.path) as server:
        called = server.open().call("text.slugify", title="Hello There")
        assert "hello-there" in str(text_in(called))
    assert folder.sprung() == []
