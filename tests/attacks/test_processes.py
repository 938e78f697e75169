"""Tools that leave processes behind, raise what ends programs, or crash: the server and its address outlive them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from dragoman.edge.http.listening import bind
from tests.support.answers import error_in, text_in
from tests.support.http_process import HttpProcess
from tests.support.http_wire import Response, message, modern, modern_call
from tests.support.processes import ServerProcess
from tests.support.served import path_of
from tests.support.waiting import PATIENCE, wait_until
from tests.support.worker_processes import Server, Session, served, value_of
from tests.support.worker_processes import modern_call as call_worker

pytestmark = pytest.mark.slow
TOOLS = path_of("process_tools.py")
LEAVING = ("start_program", "fork_on_the_loop", "fork_on_a_thread")
ENDS = ("KeyboardInterrupt", "SystemExit", "GeneratorExit", "CancelledError")


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


# Processes that tools leave behind.


def test_the_port_is_free_after_a_stop_whatever_processes_tools_have_left_behind() -> None:
    with ended_at_last() as left, HttpProcess(TOOLS) as server, server.wire() as idle:
        session = server.open()
        for name in LEAVING:
            left.append(text_in(idle.ask(modern_call(name))))
            left.append(text_in(session.call(name)))
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert all(psutil.pid_exists(pid) for pid in left)
        assert idle.is_ended
        bind("127.0.0.1", server.port).close()


def test_a_client_on_stdio_sees_the_end_of_a_server_that_leaves_processes_behind() -> None:
    with ended_at_last() as left, ServerProcess(TOOLS) as server:
        server.handshake()
        for name in LEAVING:
            left.append(int(server.call(name)["content"][0]["text"]))
        assert server.leave() == 0
        assert [each["id"] for each in server.messages()] == [0, 1, 2, 3]


def test_a_forked_child_that_returns_from_its_tool_answers_nobody_and_ends() -> None:
    with HttpProcess(TOOLS) as server, server.wire() as wire:
        for name in ("return_in_a_child_of_the_loop", "return_in_a_child_of_a_thread"):
            child = text_in(wire.ask(modern_call(name)))
            assert child > 0
            assert text_in(wire.ask(modern_call("where"))) == server.pid
            wait_until(lambda child=child: psutil.Process(child).status() == psutil.STATUS_ZOMBIE)  # type: ignore[misc]
            assert text_in(server.ask(modern_call("where"))) == server.pid


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are listed in /proc")
async def test_a_process_that_a_worker_leaves_behind_has_nothing_of_the_server_and_no_connection_hangs() -> None:
    with ended_at_last() as left, served(TOOLS) as server:
        session = await Session.open(server.port, 0)
        await session.call("where", 1)
        for name in LEAVING:
            left.append(value_of(await call_worker(server.port, name, 1)))
        for pid in left:
            process = psutil.Process(pid)
            assert process.net_connections("inet") == []
            assert [each for each in process.net_connections("unix") if "dragoman" in str(each.laddr)] == []
            opened = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: ASYNC240
            assert [each for each in opened if "dragoman" in each] == []
        dying = value_of(await call_worker(server.port, "where", 1))
        os.kill(dying, signal.SIGKILL)
        server.wait_for_log("worker ready", 3)
        async with asyncio.timeout(PATIENCE):  # Some of them would wait for ever.
            answers = [value_of(await call_worker(server.port, "where")) for _ in range(30)]
        assert dying not in answers
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        bind("127.0.0.1", server.port).close()


# What ends programs.


def failure(response: Response) -> tuple[str, str]:
    error = error_in(response.message["result"])
    return error["code"], error["details"]["reason"]


FAILED = ("INTERNAL", "handler_exception")


def test_a_tool_that_raises_what_ends_programs_ends_its_call_and_nothing_else() -> None:
    with HttpProcess(TOOLS) as server, server.wire() as holding:
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


# Crashes.


async def test_a_worker_ends_by_a_crash_only_and_the_next_server_removes_what_a_killed_one_has_left() -> None:
    with served(TOOLS) as server:
        (folder,) = folders_of(server)
        for end in ENDS:
            assert (await call_worker(server.port, "raise_on_the_loop", 1, end=end))["result"]["isError"]
            assert not (await call_worker(server.port, "raise_in_a_task", 1, end=end))["result"]["isError"]
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await call_worker(server.port, "crash_by_null_pointer", 1)
        server.wait_for_log("worker ready", 3)
        (died,) = [each for each in map(msgspec.json.decode, server.errors.lines) if each["message"] == "worker died"]
        assert (died["worker"], died["exitCode"], died["restartInMs"]) == (1, -signal.SIGSEGV, 100)
        assert "Segmentation fault" in died["stack"]
        assert "in crash_by_null_pointer" in died["stack"]
        left = server.pids()
        server.signal(signal.SIGSTOP)  # It would start others.
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        server.signal(signal.SIGKILL)
        server.wait()
    assert folder.exists()
    with served(TOOLS) as server:
        assert not folder.exists()
        assert len(folders_of(server)) == 1
        pids = server.pids()
        (folder,) = folders_of(server)
        server.signal(signal.SIGKILL)
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    with served(TOOLS):  # The parent's lock may have outlived the workers: then none of them has removed the folder.
        assert not folder.exists()


def folders_of(server: Server) -> set[Path]:
    addresses = [str(each.laddr) for pid in server.pids() for each in psutil.Process(pid).net_connections("unix")]
    return {Path(address).parent for address in addresses if "dragoman-workers-" in address}
