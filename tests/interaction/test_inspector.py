"""The official Inspector's command line against a spawned server, in both eras of the protocol."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.support.inspector import Inspection
from tests.support.node import Node
from tests.support.served import TOOLS
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow


both_eras = pytest.mark.parametrize("era", ["legacy", "modern"])


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
    logging = {"logging": {}} if era == "legacy" else {}
    assert inspect("initialize") == Inspection(
        0,
        {
            "serverInfo": {"name": "dragoman", "version": "0.1.0"},
            "protocolVersion": version,
            "capabilities": {"tools": {"listChanged": True}, **logging},
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
