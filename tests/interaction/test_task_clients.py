"""Clients of others that know tasks, and one that does not, against `dragoman serve` in a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.ext_tasks import TasksPackage
from tests.support.http_process import HttpProcess
from tests.support.node import Node
from tests.support.processes import command, environment
from tests.support.served import path_of
from tests.support.task_peers import Transport
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

TOOLS = path_of("task_tools.py")
QUESTIONS = ["Are you sure?", "Really?"]


@pytest.fixture(params=["stdio", "http"])
def transport(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.param
    return chosen


@pytest.fixture
def gate(tmp_path: Path) -> str:
    """The file that the tools wait for, which is there."""
    (tmp_path / "gate").touch()
    return str(tmp_path / "gate")


@contextmanager
def server_at(transport: Transport) -> Iterator[dict[str, Any]]:
    """The address of a server over HTTP, or what starts one over stdio."""
    settings = {"tasks.poll_interval_ms": 20}
    if transport == "stdio":
        yield {"command": command(TOOLS), "env": environment(settings)}
        return
    with HttpProcess(TOOLS, settings=settings) as server:
        yield {"url": f"http://127.0.0.1:{server.port}/mcp"}


async def test_the_official_typescript_client_with_its_tasks_package(
    tasks_package: TasksPackage, transport: Transport, gate: str
) -> None:
    with server_at(transport) as place:
        seen = await tasks_package.run("task_client.mjs", {**place, "gate": gate})
    task = {"kind": "task", "status": "completed", "content": None, "isError": False, "error": None}
    assert seen == {
        "outcomes": {
            "add": {**task, "content": {"result": 5}},
            "refuse": {**task, "isError": True},
            "fault": {**task, "status": "failed", "isError": None, "error": "The printer is on fire"},
            "pay": {**task, "status": "cancelled", "isError": None},
            "confirm": {**task, "content": {"result": "confirmed"}},
        },
        "asked": QUESTIONS,
        "methods": ["tasks/cancel", "tasks/get", "tasks/update", "tools/call"],
    }


@asynccontextmanager
async def fastmcp_client(transport: Transport, handler: Any) -> AsyncIterator[Any]:
    fastmcp = pytest.importorskip("fastmcp", reason="FastMCP is not installed: make clients")
    # From its import on, every client declares the extension.
    pytest.importorskip("fastmcp_tasks", reason="FastMCP's tasks are not installed: make clients")
    transports = pytest.importorskip("fastmcp.client.transports")
    with server_at(transport) as place, open(os.devnull, "w") as nowhere:  # noqa: ASYNC230
        where = place.get("url")
        if where is None:
            program, *arguments = place["command"]
            options = {"env": place["env"], "keep_alive": False, "log_file": nowhere}
            where = transports.StdioTransport(program, arguments, **options)
        async with asyncio.timeout(3 * PATIENCE):
            async with fastmcp.Client(where, mode="auto", elicitation_handler=handler) as client:
                yield client


async def test_fastmcps_client_polls_and_answers_without_its_caller_knowing(transport: Transport, gate: str) -> None:
    asked: list[str] = []

    async def say_yes(message: str, *_: object) -> dict[str, bool]:
        asked.append(message)
        return {"sure": True}

    async with fastmcp_client(transport, say_yes) as client:
        assert (await client.call_tool("insist")).is_error is False
        assert (await client.call_tool("add", {"a": 2, "b": 3})).structured_content == {"result": 5}
        assert (await client.call_tool("confirm", {"gate": gate})).structured_content == {"result": "confirmed"}
        assert asked == QUESTIONS
        for name, words in (("refuse", "There is no such page"), ("fault", "The printer is on fire")):
            failed = await client.call_tool(name, {}, raise_on_error=False)
            assert (failed.is_error, words in failed.content[0].text) == (True, True)


async def test_fastmcps_client_creates_watches_and_cancels_a_task(transport: Transport, gate: str) -> None:
    tasks = pytest.importorskip("fastmcp_tasks.client", reason="FastMCP's tasks are not installed: make clients")

    async def never_asked(*_: object) -> None:
        raise AssertionError("nobody answers here")

    async with fastmcp_client(transport, never_asked) as client:
        cancelled = await tasks.call_tool_task(client, "build", {"gate": f"{gate}.never"})
        said = await cancelled.status()
        assert (said.status, said.poll_interval_ms, said.ttl_ms) == ("working", 20, 86_400_000)
        await cancelled.cancel()
        assert (await cancelled.wait()).status == "cancelled"
        completed = await tasks.call_tool_task(client, "build", {"gate": gate})
        assert (await completed.result()).structured_content == {"result": "built"}
        asking = await tasks.call_tool_task(client, "confirm", {"gate": gate})
        assert len((await asking.wait(state="input_required")).input_requests) == 1
        await asking.cancel()
        assert (await asking.wait()).status == "cancelled"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_inspector_which_knows_no_tasks_is_answered_with_the_result(
    node: Node, inspector: Path, transport: Transport, era: str
) -> None:
    with server_at(transport) as place:
        address: tuple[str, ...] = (place["url"], "--transport", "http") if "url" in place else ()
        server = ("--", *place["command"]) if "command" in place else ()
        options = ("--cli", "--quiet", "--format", "json", "--protocol-era", era, *address)
        called = ("--method", "tools/call", "--tool-name", "add", "--tool-arg", "a=2", "b=3")
        process = await asyncio.create_subprocess_exec(
            *(node.node, str(inspector), *options, *called, *server),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=node.environment,
        )
        output, errors = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert (process.returncode, errors.strip()) == (0, b"")
    assert msgspec.json.decode(output)["result"]["structuredContent"] == {"result": 5}
