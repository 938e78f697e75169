"""Whatever becomes of a call of a module, the log of `apcore_mcp.serve` has its lines."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.http_wire import INITIALIZE as INITIALIZE_MESSAGE
from tests.support.http_wire import INITIALIZED as INITIALIZED_MESSAGE
from tests.support.http_wire import Wire, message, modern_call, request
from tests.support.processes import HANDSHAKE, Lines, environment, free_port, line, running
from tests.support.served import path_of

SERVER = path_of("bridge_server.py")
CALLS = {
    "works": ("works", {"width": 2}),
    "fails": ("fails", {}),
    "refused": ("works", {"width": "hunter2"}),
    "floods": ("floods", {}),
    "unknown": ("no.such\nERROR:root:made up", {}),
}
EXPECTED = {
    "works": [],
    "fails": ["fails - ModuleExecuteError: "],
    "refused": ["works - "],
    "floods": ["floods - ResultTooLarge: Result too large"],
    "unknown": [r"no.such\u000aERROR:root:made up - NotFound: Unknown tool: no.such\u000aERROR:root:made up"],
}


@contextmanager
def serving(transport: str, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Lines, int]]:
    """The process, its log and its port."""
    port = free_port()
    arguments = [sys.executable, SERVER, transport, str(port), *options]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running(arguments, env=environment(extra={"PYTHONPATH": str(Path(__file__).parents[2])}), **pipes) as process:
        assert process.stderr is not None
        log = Lines(process.stderr.fileno())
        log.start()
        log.wait_until(lambda lines: any(b"server started" in each for each in lines) or None)
        yield process, log, port


def call_over_stdio(process: subprocess.Popen[bytes], port: int) -> None:
    calls = [
        line("tools/call", {"name": name, "arguments": given}, n) for n, (name, given) in enumerate(CALLS.values(), 1)
    ]
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(HANDSHAKE)
    process.stdout.readline()
    for each in calls:
        process.stdin.write(each)
        process.stdout.readline()


def call_over_modern_http(process: subprocess.Popen[bytes], port: int) -> None:
    with Wire(port) as wire:
        for name, given in CALLS.values():
            encoded = {"mcp-name": f"=?base64?{_base64(name)}?="}
            assert wire.ask(modern_call(name, encoded, **given)).status == 200


def call_in_a_session(process: subprocess.Popen[bytes], port: int) -> None:
    with Wire(port) as wire:
        session = {"mcp-session-id": wire.ask(request(INITIALIZE_MESSAGE)).headers["mcp-session-id"]}
        assert wire.ask(request(INITIALIZED_MESSAGE, session)).status == 202
        for number, (name, given) in enumerate(CALLS.values()):
            call = message("tools/call", {"name": name, "arguments": given}, number)
            assert wire.ask(request(call, session)).status == 200


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.slow
@pytest.mark.requirement("FR-LOG-002", "FR-LOG-003", "FR-LOG-004", "NFR-MAINT-004")
@pytest.mark.parametrize(
    ("transport", "make_calls", "options"),
    [
        ("stdio", call_over_stdio, ()),
        ("streamable-http", call_over_modern_http, ("validate",)),
        ("streamable-http", call_in_a_session, ()),
    ],
    ids=["stdio", "modern HTTP, inputs validated", "a session"],
)
def test_every_call_and_every_error_has_its_line(
    transport: str, make_calls: Callable[[subprocess.Popen[bytes], int], None], options: tuple[str, ...]
) -> None:
    with serving(transport, *options) as (process, log, port):
        make_calls(process, port)
        log.wait_until(lambda lines: sum(b"Tool call error: no.such" in each for each in lines) or None)
        lines = [each.decode() for each in log.lines if b":Tool call" in each]
    assert not any("hunter2" in each for each in lines)
    assert all(each.split(":")[1].startswith("apcore_mcp.") for each in lines)
    said = [(each.split(":", 2)[0], each.split(":", 2)[2]) for each in lines]
    expected = []
    for case, (name, _) in CALLS.items():
        expected.append(("DEBUG", f"Tool call: {name}".replace("\n", r"\u000a")))
        expected += [("ERROR", f"Tool call error: {error}") for error in EXPECTED[case]]
    assert len(said) == len(expected), said
    for (level, text), (wanted_level, beginning) in zip(said, expected, strict=True):
        assert level == wanted_level
        assert text == beginning if level == "DEBUG" else text.startswith(beginning)
