"""A runtime with the process to itself."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from dragoman import serving
from dragoman.app import ServerOptions, create_server
from dragoman.config import make_config
from dragoman.errors import ConfigError
from dragoman.extras import install_command
from dragoman.serving import serve_until_stopped
from tests.support.processes import HANDSHAKE, line
from tests.support.waiting import PATIENCE

SCRIPT = """
import asyncio
from dragoman import ServerOptions, create_server, tool
from dragoman.serving import serve_until_stopped

left_behind = []

async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            print("not yet")

@tool
async def leave_something() -> str:
    "Starts what nobody will end."
    left_behind.append(asyncio.create_task(stubborn()))
    await asyncio.sleep(0)
    print("left")
    return "done"

print("abandoned", serve_until_stopped(create_server(ServerOptions(tools=[leave_something]))))
"""


@pytest.mark.slow
def test_it_serves_until_the_client_leaves_and_is_kept_by_nothing_that_a_tool_left_behind() -> None:
    sent = HANDSHAKE + line("tools/call", {"name": "leave_something", "arguments": {}}, 1)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", SCRIPT], **pipes) as process:
        process.stdin.write(sent)  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        answers = [json.loads(process.stdout.readline()) for _ in range(2)]  # type: ignore[union-attr]
        process.stdin.close()  # type: ignore[union-attr]
        rest, said = process.stdout.read(), process.stderr.read()  # type: ignore[union-attr]
        assert process.wait(PATIENCE) == 0
    assert answers[1]["result"]["content"][0]["text"] == "done"
    assert rest == b"abandoned 0\n"  # Whoever has called it has its streams again.
    assert b"left\n" in said


def test_http_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=re.escape(install_command("http"))):
        serve_until_stopped(create_server(ServerOptions()), "streamable-http")


def test_an_address_that_others_can_reach_wants_authentication() -> None:
    runtime = create_server(ServerOptions(config=make_config({"http": {"host": "0.0.0.0"}})))
    with pytest.raises(ConfigError, match="nobody is authenticated"):
        serve_until_stopped(runtime, "sse")
    with pytest.raises(RuntimeError):  # Nor is a loop left behind.
        asyncio.get_running_loop()
