"""What a process imports, and how often it looks for garbage, until it has answered."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from dragoman.cli.commands import COMMANDS
from tests.support.processes import HANDSHAKE, line
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

STARTED = """
import atexit, gc, json, sys
before, collected = set(sys.modules), []
gc.callbacks.append(lambda phase, info: collected.append(phase))

def tell():
    imported = sorted(set(sys.modules) - before)
    facts = {"imported": imported, "collected": len(collected), "frozen": gc.get_freeze_count()}
    print(json.dumps(facts), file=sys.stderr)

atexit.register(tell)
from dragoman.cli.main import main
main()
"""
TELLS = """
import sys
from dragoman import tool

@tool
async def imported() -> list[str]:
    "Names what is imported."
    return sorted(sys.modules)
"""
STARTING = {"", "cli", "cli.main", "process", "process.collector", "process.exit_codes", "version"}
LISTING = {*STARTING, "cli.commands", "cli.parts", "cli.words"}
DEAR = {
    "annotated_types",
    "anyio",
    "click",
    "email.message",
    "importlib.metadata",
    "mcp",
    "mcp_types",
    "pydantic",
    "rich",
}
"""What neither a server nor a call needs before its first answer."""


class Started(NamedTuple):
    """What came of a process: what it said, and what it took."""

    said: str
    imported: set[str]
    collected: int
    frozen: int

    @property
    def ours(self) -> set[str]:
        names = [name.partition(".") for name in self.imported]
        return {rest for package, _, rest in names if package == "dragoman"}


def started(folder: Path, *arguments: str, requests: bytes = b"") -> Started:
    ran = subprocess.run(
        [sys.executable, "-c", STARTED, *arguments],
        cwd=folder,
        input=requests,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    facts = json.loads(ran.stderr.splitlines()[-1])
    return Started(ran.stdout.decode(), set(facts["imported"]), facts["collected"], facts["frozen"])


def test_the_version_is_told_with_hardly_an_import(tmp_path: Path) -> None:
    told = started(tmp_path, "--version")
    assert told.said.startswith("dragoman ")
    assert told.ours == STARTING
    assert len(told.imported) < len(STARTING) + 5
    assert "typing" not in told.imported


@pytest.mark.parametrize("arguments", [["--help"], ["--help", "--config", "gone.toml"]])
def test_the_commands_are_listed_without_the_application_and_their_own_modules(
    arguments: list[str], tmp_path: Path
) -> None:
    listed = started(tmp_path, *arguments)
    assert all(f" {name} " in listed.said for name in COMMANDS)
    if len(arguments) == 1:
        assert listed.ours == LISTING
        assert listed.imported & {"asyncio", "msgspec", "pydantic"} == set()
    assert "app" not in listed.ours


@pytest.mark.parametrize(
    "arguments",
    [
        ["call", "echo", "message=hi"],
        ["call", "echo", "--timeout", "5", "--log-level=error", "message=hi", "--config", "my.toml"],
        ["tools", "list"],
        ["guards"],
    ],
)
def test_a_command_imports_nothing_dear(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "my.toml").touch()
    called = started(tmp_path, *arguments)
    assert called.imported & DEAR == set()
    assert called.ours & {"cli.serve", "cli.doctor", "agents.aacp", "adapters.sqlite_documents"} == set()


@pytest.mark.parametrize(
    "options", [[], ["--config", "my.toml", "--log-level=info", "--transport", "stdio", "--gateway"]]
)
def test_a_server_imports_nothing_dear_until_its_first_answers(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "my.toml").touch()
    (tmp_path / "my_tools.py").write_text(TELLS)
    served = started(
        tmp_path, "serve", "my_tools.py", *options, requests=HANDSHAKE + line("tools/call", {"name": "imported"}, 2)
    )
    _, answer = map(json.loads, served.said.splitlines())
    imported = set(json.loads(answer["result"]["content"][0]["text"]))
    assert "dragoman.edge.stdio" in imported
    assert imported & DEAR == set()
    assert ("dragoman.adapters.sqlite_documents" in imported) is ("--gateway" in options)


def test_a_server_that_keeps_memories_loads_none_of_the_other_ports(tmp_path: Path) -> None:
    served = started(tmp_path, "serve", requests=HANDSHAKE + line("tools/call", {"name": "health"}, 2))
    assert "adapters.sqlite_memories" in served.ours
    assert served.ours & {"adapters.sqlite_documents", "adapters.sqlite_bus", "agents.aacp", "gateway.port"} == set()


def test_little_is_looked_through_for_garbage_while_commands_are_imported_and_when_they_end(tmp_path: Path) -> None:
    called = started(tmp_path, "call", "echo", "message=hi")
    assert called.collected < 20  # More than a hundred with Python's own threshold.
    assert called.frozen > 10_000
