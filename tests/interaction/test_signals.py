"""How a server stops: in order when it can, in time when it cannot."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.answers import error_in
from tests.support.processes import HANDSHAKE, LONG, ServerProcess, line
from tests.support.served import TOOLS
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

SHORT = {"server.shutdown_timeout_ms": 300}
ENDED_BY_SIGINT, ENDED_BY_SIGTERM = 128 + signal.SIGINT, 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("is_modern", [False, True], ids=["handshake", "modern"])
def test_an_idle_server_stops_at_once(number: int, is_modern: bool) -> None:
    with ServerProcess(TOOLS, is_modern=is_modern, settings=LONG) as server:
        if not is_modern:
            server.handshake()
        server.list_tools()
        server.signal(number)
        assert server.wait() == 0
        assert server.log()[-1]["message"] == "server stopped"


@pytest.mark.parametrize("is_modern", [False, True], ids=["handshake", "modern"])
def test_a_running_call_is_finished_and_answered_and_new_ones_are_refused_as_retryable(
    is_modern: bool, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with ServerProcess(TOOLS, is_modern=is_modern) as server:
        if not is_modern:
            server.handshake()
        held = server.begin_call("hold", path=str(tmp_path / "pipe"))
        server.wait_for_log("under way")
        server.signal(signal.SIGTERM)
        refusal = refused_at_last(server)
        assert (refusal["code"], refusal["details"]["retryable"]) == ("RESOURCE_EXHAUSTED", True)
        (tmp_path / "pipe").write_text("done")
        assert server.answer(held)["result"]["content"] == [{"type": "text", "text": "done"}]
        assert server.wait() == 0
        assert server.records()["hold"] == ["success"]


def refused_at_last(server: ServerProcess) -> dict[str, Any]:
    """The first refusal: the signal takes a moment to arrive, and calls are served until then."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        result = server.call("echo", message="still there?")
        if result["isError"]:
            return error_in(result)
    raise AssertionError("new calls are served although the server was asked to stop")


@pytest.mark.requirement("FND-CONN-06")
def test_hung_threads_in_every_slot_cannot_delay_the_exit() -> None:
    with ServerProcess(TOOLS, settings={**SHORT, "resources.max_concurrent_executions": 3}) as server:
        server.handshake()
        for _ in range(3):
            server.begin_call("hang")
        server.wait_for_log("under way", times=3)
        asked = time.monotonic()
        server.signal(signal.SIGTERM)
        assert server.wait() == 3
        assert time.monotonic() - asked >= 0.3
        assert server.records() == {"hang": ["timeout"] * 3}


@pytest.mark.parametrize(
    "stop",
    [lambda server: server.signal(signal.SIGTERM), lambda server: server.stdin.close()],
    ids=["signal", "end-of-input"],
)
def test_a_thread_that_a_tool_left_behind_cannot_delay_the_exit(stop: Callable[[ServerProcess], None]) -> None:
    with ServerProcess(TOOLS, settings=SHORT) as server:
        server.handshake()
        server.call("leave_a_thread_behind")
        stop(server)
        assert server.wait() == 0


def test_a_tool_that_blocks_the_event_loop_cannot_prevent_the_exit() -> None:
    with ServerProcess(TOOLS, settings=SHORT) as server:
        server.handshake()
        server.begin_call("block_the_loop")
        server.wait_for_log("under way")
        server.signal(signal.SIGTERM)
        assert server.wait() == ENDED_BY_SIGTERM


def test_a_client_that_reads_nothing_cannot_prevent_the_exit() -> None:
    calls = b"".join(line("tools/call", {"name": "echo", "arguments": {"message": "x"}}, id) for id in range(50_000))
    with ServerProcess(is_read=False) as server:
        server.send(HANDSHAKE)
        assert select.select([server.stdout], [], [], PATIENCE)[0]
        assert server.offer(calls, patience=3) < len(calls)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def test_a_second_interrupt_ends_the_server_at_once() -> None:
    with ServerProcess(TOOLS, settings=LONG) as server:
        server.handshake()
        server.begin_call("hang")
        server.wait_for_log("under way")
        server.signal(signal.SIGINT)
        refused_at_last(server)
        server.signal(signal.SIGINT)
        assert server.wait() == ENDED_BY_SIGINT


def test_health_is_told_while_hung_threads_hold_every_slot() -> None:
    with ServerProcess(TOOLS, settings={"resources.max_concurrent_executions": 2}) as server:
        server.handshake()
        server.begin_call("hang")
        server.begin_call("hang")
        server.wait_for_log("under way", times=2)
        assert error_in(server.call("echo", message="hi"))["code"] == "RESOURCE_EXHAUSTED"
        health = msgspec.json.decode(server.call("health")["content"][0]["text"])
        assert health["status"] == "unhealthy"
        assert health["resources"]["concurrentExecutions"] == 2


def test_a_stream_of_changes_ends_with_its_result_when_the_server_stops() -> None:
    with ServerProcess(TOOLS, is_modern=True) as server:
        listening = server.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        server.output.wait_until(lambda lines: any(b"subscriptions/acknowledged" in each for each in lines) or None)
        server.signal(signal.SIGTERM)
        assert server.answer(listening)["result"]["resultType"] == "complete"
        assert server.wait() == 0


def test_a_client_that_leaves_its_stream_of_changes_open_does_not_keep_the_server() -> None:
    with ServerProcess(TOOLS, is_modern=True) as server:
        server.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        server.output.wait_until(lambda lines: any(b"subscriptions/acknowledged" in each for each in lines) or None)
        assert server.leave() == 0
        server.log()
