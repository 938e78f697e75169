"""`dragoman serve --explorer`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request

import pytest

from tests.support.forking import run
from tests.support.processes import Lines, command, environment, free_port, running
from tests.support.served import TOOLS
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow


@pytest.mark.requirement("FR-EXPLORER-001", "FR-EXPLORER-006")
def test_the_command_prints_where_to_look_and_what_to_paste_and_keeps_the_token_out_of_the_log() -> None:
    port = free_port()
    options = ("--transport", "streamable-http", "--port", str(port), "--explorer", "--allow-execute")
    with running(
        command(TOOLS, *options, "--explorer-prefix", "/look/"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        printed = Lines(process.stdout.fileno())
        printed.start()
        log = Lines(process.stderr.fileno())
        log.start()
        snippet = printed.wait_until(lambda lines: next((each for each in lines if b"mcpServers" in each), None))
        text = b"\n".join(printed.lines).decode()
        found = re.search(rf"http://127\.0\.0\.1:{port}/look/#token=(\S+)", text)
        assert found is not None, text
        assert json.loads(snippet) == {"mcpServers": {"dragoman": {"url": f"http://127.0.0.1:{port}/mcp"}}}
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/look/", timeout=PATIENCE) as page:
            assert page.headers["content-type"] == "text/html; charset=utf-8"
        call = urllib.request.Request(
            f"http://127.0.0.1:{port}/look/tools/echo/call",
            b'{"message":"hi"}',
            {"content-type": "application/json", "x-explorer-token": found[1]},
        )
        with urllib.request.urlopen(call, timeout=PATIENCE) as done:
            assert json.load(done) == {"result": {"message": "hi"}}
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert found[1].encode() not in b"".join(log.all())


@pytest.mark.requirement("FR-EXPLORER-006")
def test_a_prefix_that_cannot_be_ends_the_command_with_a_reason() -> None:
    options = ("--transport", "streamable-http", "--port", str(free_port()), "--explorer", "--explorer-prefix", "look")
    done = run(command(TOOLS, *options), text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert "explorer.prefix" in done.stderr
