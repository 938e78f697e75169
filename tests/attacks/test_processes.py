"""Tools that leave processes behind, raise what ends programs, or crash: the server and its address outlive them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.interaction.http_raw import HttpProcess, Response, message, modern, modern_call, text_in
from tests.interaction.servers import PATIENCE, ServerProcess, error_in

pytestmark = pytest.mark.slow
TOOLS = str(Path(__file__).with_name("process_tools.py"))
LEAVING = ("start_program", "fork_on_the_loop", "fork_on_a_thread")
ENDS = ("KeyboardInterrupt", "SystemExit", "GeneratorExit", "CancelledError")


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def ended_at_last() -> Iterator[list[int]]:
    """A list of processes that are killed at the end of the block."""
    pids: list[int] = []
    try:
        yield pids
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# What ends programs.


def failure(response: Response) -> tuple[str, str]:
    error = error_in(response.message["result"])
    return error["code"], error["details"]["reason"]


FAILED = ("INTERNAL", "handler_exception")


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_a_tool_that_raises_what_ends_programs_ends_its_call_and_nothing_else(options: tuple[str, ...]) -> None:
    with HttpProcess(TOOLS, *options) as server, server.wire() as holding:
        session = server.open()
        holding.send(modern_call("hold", seconds=1.0))
        server.wait_for_log("under way")
        for end in ENDS:
            for tool in ("raise_on_the_loop", "raise_on_a_thread"):
                assert failure(server.ask(modern_call(tool, end=end))) == FAILED
                assert failure(session.call(tool, end=end)) == FAILED
            assert text_in(server.ask(modern_call("raise_in_a_task", end=end))) is None
        read = server.ask(modern("resources/read", {"uri": "ending://resource"}, {"mcp-name": "ending://resource"}))
        got = session.post(message("prompts/get", {"name": "ending_prompt"}, 5))
        assert [each.code for each in (read, got)] == [-32603] * 2
        assert text_in(holding.read()) == "held"
        server.signal(signal.SIGINT)
        assert server.wait() == 0


def test_a_tool_on_stdio_that_raises_what_ends_programs_ends_its_call_and_nothing_else() -> None:
    with ServerProcess(TOOLS) as server:
        server.handshake()
        held = server.begin_call("hold", seconds=1.0)
        for end in ENDS:
            for tool in ("raise_on_the_loop", "raise_on_a_thread"):
                assert error_in(server.call(tool, end=end))["details"]["reason"] == "handler_exception"
            assert server.call("raise_in_a_task", end=end)["isError"] is False
        assert server.answer(held)["result"]["isError"] is False
        server.signal(signal.SIGINT)
        assert server.wait() == 0


def test_a_file_that_interrupts_while_it_is_loaded_does_not_end_the_watching(tmp_path: Path) -> None:
    target = tmp_path / "edited.py"
    code = "from dragoman import tool\n@tool\ndef {}() -> int:\n    return 1\n"
    target.write_text(code.format("first"))
    with ServerProcess(str(target), "--reload") as server:
        server.handshake()
        assert "first" in [each["name"] for each in server.list_tools()]
        for times, end in enumerate(("KeyboardInterrupt", "GeneratorExit"), 1):
            target.write_text(f"raise {end}")
            server.wait_for_log("tools not reloaded", times)
        target.write_text(code.format("second"))
        server.wait_for_log("tools reloaded")
        assert "second" in [each["name"] for each in server.list_tools()]
