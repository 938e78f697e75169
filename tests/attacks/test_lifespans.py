"""The lifespan of a served file, on real servers: entered before the first call, left at the end, bounded in time."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import forking
from tests.support.answers import text_in
from tests.support.forking import DRAGOMAN, start
from tests.support.http_process import HttpProcess
from tests.support.http_wire import modern_call
from tests.support.processes import ServerProcess, command, environment, free_port
from tests.support.waiting import PATIENCE, wait_until
from tests.support.worker_processes import served

pytestmark = pytest.mark.slow

LIVELY = """
import os
from contextlib import asynccontextmanager
from dragoman import ToolContext, tool

@asynccontextmanager
async def lifespan(runtime):
    print("entered {name}", flush=True)
    with open("places", "a") as places:
        print("entered {name}", os.getpid(), file=places)
    yield {{"name": "{name}", "pid": os.getpid()}}
    with open("places", "a") as places:
        print("left {name}", os.getpid(), file=places)

@tool
async def look(ctx: ToolContext) -> dict:
    "Gives the lifespan's value."
    return ctx.lifespan
"""


def write(folder: Path, text: str = LIVELY.format(name="one"), name: str = "lively.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def places(folder: Path) -> list[str]:
    return (folder / "places").read_text().splitlines()


@pytest.mark.parametrize("transport", ["streamable-http", "sse"])
def test_over_http_the_lifespan_is_entered_before_the_server_is_ready_and_left_at_its_end(
    tmp_path: Path, transport: str
) -> None:
    with HttpProcess(write(tmp_path), transport=transport, cwd=tmp_path) as server:
        assert [line.rpartition(" ")[0] for line in places(tmp_path)] == ["entered one"]
        if transport == "streamable-http":
            assert text_in(server.ask(modern_call("look")))["name"] == "one"
            assert text_in(server.open().call("look"))["name"] == "one"
    assert [line.rpartition(" ")[0] for line in places(tmp_path)] == ["entered one", "left one"]


def test_on_stdio_a_reload_enters_the_new_lifespan_and_leaves_the_old_one(tmp_path: Path) -> None:
    target = write(tmp_path)
    with ServerProcess(target, "--reload", cwd=tmp_path) as server:
        server.handshake()
        assert msgspec.json.decode(server.call("look")["content"][0]["text"])["name"] == "one"
        write(tmp_path, LIVELY.format(name="another"))
        server.wait_for_log("tools reloaded")
        assert msgspec.json.decode(server.call("look")["content"][0]["text"])["name"] == "another"
        assert server.leave() == 0
    said = [line.rpartition(" ")[0] for line in places(tmp_path)]
    assert said[:2] == ["entered one", "entered another"]
    assert sorted(said[2:]) == ["left another", "left one"]


def test_each_worker_has_a_lifespan_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with served(write(tmp_path)) as server:
        pids = server.pids()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert sorted(places(tmp_path)) == sorted(f"{what} one {pid}" for what in ("entered", "left") for pid in pids)


def run(*arguments: str, cwd: Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    return forking.run(
        [*DRAGOMAN, *arguments],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment(settings),
        timeout=PATIENCE,
    )


def test_a_call_from_the_command_line_is_within_the_lifespan(tmp_path: Path) -> None:
    called = run("call", "look", "--target", write(tmp_path), cwd=tmp_path)
    assert (called.returncode, msgspec.json.decode(called.stdout)["name"]) == (0, "one"), called.stderr
    assert [line.rpartition(" ")[0] for line in places(tmp_path)] == ["entered one", "left one"]


FAILING = """
from contextlib import asynccontextmanager
from dragoman import tool

def connect():
    raise ConnectionError("no database")

@asynccontextmanager
async def lifespan():
    connect()
    yield

@tool
def ok() -> int:
    "Does nothing."
    return 1
"""


@pytest.mark.parametrize(
    "how",
    [
        ["serve", "TARGET"],
        ["serve", "TARGET", "--transport", "streamable-http", "--port", "PORT"],
        ["call", "ok", "--target", "TARGET"],
        pytest.param(
            ["serve", "TARGET", "--transport", "streamable-http", "--port", "PORT", "--workers", "2"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["stdio", "http", "call", "workers"],
)
def test_a_failing_lifespan_stops_the_start_with_the_authors_own_frames(tmp_path: Path, how: list[str]) -> None:
    target = write(tmp_path, FAILING, "failing.py")
    ended = run(*({"TARGET": target, "PORT": str(free_port())}.get(word, word) for word in how), cwd=tmp_path)
    assert ended.returncode == 2
    assert f"cannot load tools from {target!r}: its lifespan failed: ConnectionError: no database" in ended.stderr
    frames = [line for line in ended.stderr.splitlines() if line.startswith("  File ")]
    assert frames
    assert all("failing.py" in line for line in frames)
    assert "server started" not in ended.stderr


SLOW = """
import asyncio
from contextlib import asynccontextmanager
from dragoman import tool

@asynccontextmanager
async def lifespan():
    if {is_slow_to_enter}:
        print("entering", flush=True)
        await asyncio.Event().wait()
    yield
    await asyncio.Event().wait()

@tool
def ok() -> int:
    "Does nothing."
    return 1
"""


@pytest.mark.parametrize("arguments", [[], ["--transport", "streamable-http", "--port", "PORT"]], ids=["stdio", "http"])
@pytest.mark.parametrize("is_slow_to_enter", [True, False], ids=["entering", "leaving"])
def test_a_lifespan_that_hangs_does_not_keep_a_server_that_is_told_to_stop(
    tmp_path: Path, arguments: list[str], is_slow_to_enter: bool
) -> None:
    target = write(tmp_path, SLOW.format(is_slow_to_enter=is_slow_to_enter), "slow_tools.py")
    log = tmp_path / "log"
    with (
        log.open("wb") as errors,
        start(
            command(target, *(str(free_port()) if word == "PORT" else word for word in arguments)),
            stdin=subprocess.PIPE,
            stdout=errors,
            stderr=errors,
            env=environment({"server.shutdown_timeout_ms": 300}),
        ) as process,
    ):
        try:
            begun = b"entering" if is_slow_to_enter else b"server started"
            wait_until(lambda: begun in log.read_bytes())
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    took_too_long = b"the end of the lifespan took too long" in log.read_bytes()
    assert took_too_long is not is_slow_to_enter
