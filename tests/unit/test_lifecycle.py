"""A connection's life, its server's parts, and what neither garbage nor a defect of our own can end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

import dragoman
from dragoman.agents.coordinator import Coordinator
from dragoman.app import ServerOptions, create_server
from dragoman.calls.slots import Slots
from dragoman.config import make_config
from dragoman.edge.connection import Connection, TransportType
from dragoman.edge.stdio import Streams, start_server
from dragoman.errors import InvalidParams
from dragoman.protocol.session import Request, State
from dragoman.runtime import Runtime, ServerState
from dragoman.telemetry.log import StructuredLogger
from dragoman.testing import ManualClock, MemoryClient, SequentialIds, TestServer, open_server
from dragoman.testing.connection import CLIENT_INFO
from dragoman.testing.wire import decode
from dragoman.tools.catalogue import Catalogue, RegisteredTool
from dragoman.tools.context import ToolContext
from dragoman.tools.tool import Tool, ToolDefinition, define_tool, tool
from tests.support.waiting import PATIENCE

TRANSPORTS: list[TransportType] = ["stdio", "sse", "http"]
NOT_INITIALIZED = {
    "code": "NOT_INITIALIZED",
    "message": "The connection is not initialized: send `initialize`, then the `initialized` notification, first.",
}


@tool
async def ok() -> str:
    """Says that all is well."""
    return "ok"


class Held:
    """A tool whose handler returns when it is told to."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        definition = ToolDefinition(name="held", description="Waits.", input_schema={"type": "object"})
        self.tool: Tool = define_tool(definition, self._run)

    async def _run(self, arguments: dict[str, Any], context: dragoman.ToolContext) -> str:
        self.begun.set()
        await self.go_on.wait()
        context.progress(1)
        return "done"


# One connection


@pytest.mark.requirement("FND-LIFE-01", "FND-LIFE-07")
async def test_a_connection_opens_in_starting_with_an_id_a_transport_and_a_logger_of_its_own() -> None:
    async with open_server(ids=SequentialIds(), clock=ManualClock()) as server:
        first, second = server.connect("http"), server.connect("sse")
        assert [(client.state, client.connection.correlation_id) for client in (first, second)] == [
            (State.STARTING, "conn-1"),
            (State.STARTING, "conn-2"),
        ]
        assert (first.connection.wire.type, second.connection.wire.type) == ("http", "sse")
        second.connection.logger.child({"a": 1}).info("hello")
        assert server.log[-1] == {
            "timestamp": "2024-01-15T10:30:00.000Z",
            "level": "info",
            "message": "hello",
            "connectionCorrelationId": "conn-2",
            "a": 1,
        }


@pytest.mark.requirement("FND-LIFE-01")
async def test_what_happens_to_one_connection_leaves_the_others_as_they_are() -> None:
    async with open_server([ok]) as server:
        idle, other, leaving = server.connect(), await server.client(), await server.client()
        leaving.disconnect()
        assert (idle.state, other.state, leaving.state) == (State.STARTING, State.RUNNING, State.CLOSED)
        await idle.initialize()
        assert (idle.state, other.state, leaving.state) == (State.INITIALIZING, State.RUNNING, State.CLOSED)
        assert (await other.call_tool("ok"))["isError"] is False


@pytest.mark.requirement("FND-LIFE-02", "FND-LIFE-04")
async def test_the_handshake_answers_initialize_with_the_configured_identity_and_initialized_with_nothing() -> None:
    config = {"server": {"name": "atlas", "version": "7.1"}}
    async with open_server(config=config) as server:
        client = server.connect()
        answer = await client.initialize()
        assert answer["result"] == {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}, "logging": {}},
            "serverInfo": {"name": "atlas", "version": "7.1"},
        }
        client.initialized()
        assert (client.state, client.received()) == (State.RUNNING, [answer])


@pytest.mark.requirement("FND-LIFE-03", "FND-LIFE-05", "FND-RPC-09")
async def test_no_handler_runs_before_initialized_and_one_does_right_after() -> None:
    runs = []

    @tool
    async def note() -> None:
        """Notes that it ran."""
        runs.append(1)

    async with open_server([note], ids=SequentialIds()) as server:
        client = server.connect()
        for _ in (State.STARTING, State.INITIALIZING):
            for method in ("tools/call", "tools/list", "ping", "no/such"):
                answer = await client.request(method, {"name": "note"})
                data = {**NOT_INITIALIZED, "correlationId": "conn-1"}
                assert answer["error"] == {"code": -32002, "message": "Not initialized", "data": data}
            if client.state is State.STARTING:
                await client.initialize()
        await server.runtime.runner.drain(PATIENCE)
        assert (runs, server.records) == ([], [])
        client.initialized()
        assert "tools" in (await client.request("tools/list"))["result"]
        assert (await client.call_tool("note"))["isError"] is False
        assert runs == [1]


@pytest.mark.requirement("FND-LIFE-06")
async def test_after_closed_no_byte_is_written() -> None:
    held = Held()
    async with open_server([held.tool]) as server:
        client = await server.client()
        client.begin("tools/call", {"name": "held", "_meta": {"progressToken": 1}})
        await held.begun.wait()
        client.disconnect()
        before = list(client.wire.lines)
        client.begin("ping")
        client.send(b"garbage\n")
        client.connection.notify("notifications/message")
        held.go_on.set()
        await server.runtime.runner.drain(PATIENCE)
        assert (client.wire.lines, client.state) == (before, State.CLOSED)


@pytest.mark.requirement("FND-LIFE-06")
@pytest.mark.parametrize("error", [None, InvalidParams, RuntimeError])
async def test_a_kernel_request_under_way_is_not_answered_after_closed(error: type[Exception] | None) -> None:
    class StubbornKernel:
        """Answers, refuses or fails although it was cancelled."""

        begun, ended = asyncio.Event(), asyncio.Event()

        async def handle(self, connection: Connection, request: Request) -> dict[str, Any]:
            self.begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.ended.set()
            if error is not None:
                raise error("on purpose")
            return {}

    kernel = StubbornKernel()
    async with open_server() as server:
        client = await client_of(server, kernel)
        client.begin("prompts/list")
        await kernel.begun.wait()
        before = list(client.wire.lines)
        client.disconnect()
        await asyncio.wait_for(kernel.ended.wait(), timeout=PATIENCE)
        assert (client.wire.lines, client.connection.is_idle) == (before, True)


@pytest.mark.requirement("FND-LIFE-09")
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_core_serves_any_type_of_transport_without_standard_streams(
    transport: TransportType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "stdout", None)
    seen: list[str] = []

    @tool
    async def note(context: ToolContext) -> None:
        """Notes how it was reached."""
        seen.append(context.transport)

    async with open_server([note]) as server:
        client = await server.connect(transport).handshake()
        assert [entry["name"] for entry in await client.list_tools()] == ["health", "note"]
        assert (await client.call_tool("note"))["isError"] is False
        assert seen == [transport]
        assert (await client.request("ping"))["result"] == {}
    assert capfd.readouterr() == ("", "")


async def test_a_change_of_the_list_is_told_to_running_handshake_clients_only() -> None:
    async with open_server([ok]) as server:
        waiting, modern, client = server.connect(), server.connect(modern=True), await server.client()
        await modern.request("server/discover")
        server.runtime.catalogue.unregister("ok")
        await asyncio.sleep(0)
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        assert [changed in peer.received() for peer in (waiting, modern, client)] == [False, False, True]


# Requests under way


@pytest.mark.parametrize("method", ["tools/call", "prompts/list", "ping", "tools/list"])
async def test_a_request_with_the_id_of_one_under_way_is_refused_and_the_first_is_answered(method: str) -> None:
    held = Held()
    async with open_server([held.tool]) as server:
        client = await server.client()
        client.begin("tools/call", {"name": "held"}, id="x")
        await held.begun.wait()
        client.begin(method, {"name": "health", "_meta": {"correlationId": "mine"}}, id="x")
        assert (await client.answer("x"))["error"] == {
            "code": -32600,
            "message": "Invalid request: a request with this id is under way",
            "data": {"correlationId": "mine"},
        }
        held.go_on.set()
        await server.runtime.runner.drain(PATIENCE)
        assert [message["result"]["content"] for message in client.received()[2:]] == [
            [{"type": "text", "text": '"done"'}]
        ]


async def test_an_id_is_free_again_once_it_is_answered_and_a_number_is_not_its_text() -> None:
    held = Held()
    async with open_server([held.tool, ok]) as server:
        client = await server.client()
        client.begin("tools/call", {"name": "held"}, id="7")
        await held.begun.wait()
        for _ in range(2):
            client.begin("tools/call", {"name": "ok"}, id=7)
            await client.call_tool("ok")
        held.go_on.set()
        await client.answer("7")
        answers = [message for message in client.received() if message["id"] in (7, "7")]
        assert [(answer["id"], answer["result"]["content"][0]["text"]) for answer in answers] == [
            (7, "ok"),
            (7, "ok"),
            ("7", '"done"'),
        ]


async def test_a_cancelled_request_does_not_take_the_next_one_of_its_id_with_it() -> None:
    class Kernel:
        begun, go_on = asyncio.Semaphore(0), asyncio.Event()

        async def handle(self, connection: Connection, request: Request) -> dict[str, Any]:
            self.begun.release()
            await self.go_on.wait()
            return {"prompts": []}

    kernel = Kernel()
    async with open_server() as server:
        client = await client_of(server, kernel)
        client.begin("prompts/list", id="x")
        await kernel.begun.acquire()
        client.notify("notifications/cancelled", {"requestId": "x"})
        client.begin("prompts/list", id="x")
        await kernel.begun.acquire()
        assert client.connection.is_idle is False
        kernel.go_on.set()
        assert (await client.answer("x"))["result"] == {"prompts": []}
        assert client.connection.is_idle is True


# Garbage and defects


@pytest.mark.requirement("FND-LIFE-10", "FND-RPC-01")
async def test_after_any_garbage_the_next_request_is_answered() -> None:
    limit = {"limits": {"max_request_bytes": 100_000}}
    garbage = [
        b"not json",
        b"\xff\x00",
        b"[" * 50_000,
        b'{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{"name":"ok"}}',
        b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
        b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"ok","arguments":[]}}',
        b"x" * 100_001,
        b'{"jsonrpc":"2.0","id":6,"method":"\\u0000\\n"}',
    ]
    async with open_server([ok], limit) as server:
        client = await server.client()
        for line in garbage:
            client.send(line + b"\n")
            assert (await client.call_tool("ok"))["isError"] is False
        errors = [message["error"] for message in client.received() if "error" in message]
        assert [error["code"] for error in errors] == [-32700, -32700, -32700, -32600, -32600, -32602, -32600, -32601]
        ids = {error["data"]["correlationId"] for error in errors}
        assert ids == {client.connection.correlation_id}


class BrokenCatalogue(Catalogue):
    """Fails when it is asked, as a defect of ours would."""

    def get(self, name: str) -> RegisteredTool | None:
        raise RuntimeError("a secret in a defect")

    def __iter__(self) -> Iterator[RegisteredTool]:
        raise RuntimeError("a secret in a defect")


@pytest.mark.requirement("FND-RPC-08", "FND-CORR-04")
@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
async def test_a_failure_outside_any_tool_is_an_internal_error_and_the_server_lives_on(method: str) -> None:
    config = make_config()
    catalogue = BrokenCatalogue(config.tools, StructuredLogger([].append))
    catalogue.register(ok)
    async with open_server(catalogue=catalogue) as server:
        client = await server.client()
        request = client.request(method, {"name": "ok", "_meta": {"correlationId": "mine"}})
        answer = await asyncio.wait_for(request, timeout=PATIENCE)
        assert answer["error"] == {"code": -32603, "message": "Internal error", "data": {"correlationId": "mine"}}
        assert (await client.request("ping"))["result"] == {}
        failure = next(entry for entry in server.log if entry["level"] == "error")
        assert failure["correlationId"] == "mine"
        assert "a secret in a defect" in failure["error"]["message"]


class BrokenKernel:
    async def handle(self, connection: Connection, request: Request) -> NoReturn:
        raise ImportError("no SDK today")


async def client_of(server: TestServer, kernel: Any) -> MemoryClient:
    """A client whose handshake is through, on a server whose kernel is another one."""
    client = server.connect()
    client.connection = Connection(replace(client.connection._services, kernel=kernel), client.wire)
    server.runtime.connections.add(client.connection)
    return await client.handshake()


@pytest.mark.requirement("FND-RPC-08", "FND-CORR-04")
async def test_a_kernel_that_fails_is_an_internal_error_and_the_server_lives_on() -> None:
    async with open_server() as server:
        client = await client_of(server, BrokenKernel())
        request = client.request("prompts/list", {"_meta": {"correlationId": "mine"}})
        answer = await asyncio.wait_for(request, timeout=PATIENCE)
        assert answer["error"] == {"code": -32603, "message": "Internal error", "data": {"correlationId": "mine"}}
        assert (await client.request("ping"))["result"] == {}
        failure = next(entry for entry in server.log if entry["level"] == "error")
        assert failure["correlationId"] == "mine"


# The server's parts


def test_a_server_is_made_of_the_parts_it_is_given() -> None:
    config = make_config({"server": {"name": "atlas"}})
    clock, ids = ManualClock(), SequentialIds()
    logger = StructuredLogger([].append, clock)
    catalogue = Catalogue(config.tools, logger)
    slots, coordinator = Slots(config.resources, config.tools, clock), Coordinator()
    options = ServerOptions(
        config=config, clock=clock, ids=ids, logger=logger, catalogue=catalogue, slots=slots, agents=coordinator
    )
    server = create_server(options)
    assert (server.config, server.clock, server.ids) == (config, clock, ids)
    assert server.logger is logger
    assert server.slots is slots
    assert server.agents is coordinator
    assert server.catalogue is catalogue, "an empty catalogue is a catalogue"


@pytest.mark.requirement("FND-LIFE-07")
async def test_with_injected_clock_and_ids_two_runs_are_the_same_to_the_byte() -> None:
    async def run() -> tuple[list[bytes], bytes]:
        async with open_server(
            [ok], {"logging": {"level": "debug"}}, ids=SequentialIds(), clock=ManualClock()
        ) as server:
            client = await server.client()
            await client.call_tool("ok")
            await client.call_tool("no-such-tool")
            await client.request("no/such")
            client.send(b"garbage\n")
            client.disconnect()
            return client.wire.lines, server.stderr

    first, second = await run(), await run()
    assert first == second
    assert (len(first[0]), b"conn-1" in first[1], b"run-2" in first[1]) == (5, True, True)


@pytest.mark.requirement("FND-LIFE-10")
async def test_start_server_serves_a_pair_of_descriptors_until_the_client_leaves() -> None:
    server = create_server(ServerOptions(clock=ManualClock(), ids=SequentialIds(), tools=[ok]))
    (input, client_output), (client_input, output) = os.pipe(), os.pipe()
    handlers = signal_handlers()
    serving = asyncio.create_task(start_server(server, Streams(input, output)))
    os.write(client_output, b"garbage\n" + conversation("ok"))
    answers = b""
    while answers.count(b"\n") < 3:
        answers += await asyncio.to_thread(os.read, client_input, 65_536)
    assert signal_handlers() != handlers
    os.close(client_output)
    assert await serving == 0
    assert signal_handlers() == handlers
    os.close(output)
    assert os.read(client_input, 1) == b""
    os.close(client_input)
    os.close(input)
    lines = [decode(line) for line in answers.splitlines()]
    assert lines[0]["error"]["data"] == {"correlationId": "conn-1"}
    assert lines[1]["result"]["serverInfo"] == {"name": "dragoman", "version": "0.1.0"}
    assert lines[2]["result"]["content"] == [{"type": "text", "text": "ok"}]


def signal_handlers() -> list[Any]:
    return [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]


def conversation(*tools: str) -> bytes:
    """A handshake, then a call of each tool."""
    messages: list[dict[str, Any]] = [
        {
            "id": 0,
            "method": "initialize",
            "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT_INFO},
        },
        {"method": "notifications/initialized"},
        *({"id": number, "method": "tools/call", "params": {"name": name}} for number, name in enumerate(tools, 1)),
    ]
    return b"".join(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n" for message in messages)


EXTRAS = (
    "apcore",
    "joserfc",
    "prometheus_client",
    "uvloop",
    "uvicorn",
)

BARE_SERVER = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from dragoman.cli.main import main
main()
"""

LOADED = """
import sys
from dragoman import tool

@tool
def loaded() -> list[str]:
    "Names the packages that are loaded."
    return sorted({name.partition(".")[0] for name in sys.modules})
"""


@pytest.mark.slow
@pytest.mark.requirement("FND-LIFE-11")
def test_without_any_extra_the_server_starts_and_answers_and_the_sdk_waits_until_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(LOADED)
    command = [sys.executable, "-c", BARE_SERVER, "serve", "tools.py"]
    kernel_request = b'{"jsonrpc":"2.0","id":2,"method":"prompts/list"}\n'
    with subprocess.Popen(
        command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(conversation("loaded"))
        process.stdin.flush()
        answers = [decode(process.stdout.readline()) for _ in range(2)]
        process.stdin.write(kernel_request)
        process.stdin.flush()
        kernel_answer = decode(process.stdout.readline())
        process.stdin.close()
        assert process.wait(timeout=PATIENCE) == 0
    packages = set(json.loads(answers[1]["result"]["content"][0]["text"]))
    assert "dragoman" in packages
    assert packages & {*EXTRAS, "starlette", "anyio", "mcp", "mcp_types"} == set()
    assert kernel_answer["error"]["code"] == -32601


# What belongs to the life of a server


async def test_the_lifespan_is_entered_when_calls_are_taken_and_left_when_the_last_has_ended() -> None:
    held, seen = Held(), list[str]()

    @asynccontextmanager
    async def lifespan(runtime: Runtime) -> AsyncIterator[None]:
        seen.append(runtime.state.value)
        yield
        seen.append(f"{runtime.state.value} {runtime.runner.under_way}")
        raise RuntimeError("too tired to clean up")

    async with open_server([held.tool], lifespan=lifespan) as server:
        client = await server.client()
        call = client.begin("tools/call", {"name": "held", "arguments": {}})
        await held.begun.wait()
        stopping = asyncio.create_task(server.runtime.stop())
        await asyncio.sleep(0)
        held.go_on.set()
        assert await stopping == 0
        assert (await client.answer(call))["result"]["isError"] is False
        assert seen == ["running", "draining 0"]
        assert [entry["message"] for entry in server.log if entry["level"] == "error"] == [
            "the end of the lifespan failed"
        ]


async def test_a_server_whose_lifespan_cannot_begin_does_not_run() -> None:
    @asynccontextmanager
    async def lifespan(runtime: Runtime) -> AsyncIterator[None]:
        raise RuntimeError("not today")
        yield

    runtime = create_server(ServerOptions(lifespan=lifespan))
    with pytest.raises(RuntimeError, match="not today"):
        await runtime.start()
    assert runtime.state is ServerState.CLOSED


async def test_a_server_can_do_without_its_own_tool() -> None:
    async with open_server([ok], has_health=False) as server:
        assert [each["name"] for each in await (await server.client()).list_tools()] == ["ok"]
