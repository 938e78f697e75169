"""Real clients over HTTP: what they are told, how they leave, many at once, and clients of others."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import msgspec
import pytest
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ToolsListChanged

from dragoman import ToolContext, tool
from dragoman.errors import NotFound
from dragoman.tools.tool import tool_of
from tests.support.http_serving import Serving, open_session, serving
from tests.support.inspector import Inspection
from tests.support.node import Node
from tests.support.sdk_client import both_eras, error_of
from tests.support.served import tools_under_test
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

TOOLS = [
    tools_under_test.add,
    tools_under_test.count,
    tools_under_test.echo,
    tools_under_test.fail,
    tools_under_test.overrun,
    tools_under_test.picture,
    tools_under_test.refuse,
    tools_under_test.wait_to_be_cancelled,
]


@asynccontextmanager
async def connected(mode: str, **options: Any) -> AsyncIterator[tuple[Client, Serving]]:
    """A client of a server of its own."""
    async with serving(TOOLS) as server, Client(server.url, mode=mode, **options) as client:
        yield client, server


@both_eras
async def test_a_client_that_leaves_ends_its_calls(mode: str) -> None:
    under_way = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        under_way.set()

    async with serving(TOOLS) as server:
        async with Client(server.url, mode=mode) as client:
            call = asyncio.create_task(client.call_tool("wait_to_be_cancelled", {}, progress_callback=on_progress))
            await under_way.wait()
        await asyncio.gather(call, return_exceptions=True)
        await server.recorded(("wait_to_be_cancelled", "aborted"))
        assert server.runtime.sessions is not None
        sessions = server.runtime.sessions
        await until(lambda: sessions.count == 0)


@tool
def late() -> str:
    """Comes later."""
    return "here"


@tool
def later() -> str:
    """Comes later still."""
    return "here too"


def register_from_a_thread(server: Serving, *tools: Any) -> None:
    def register() -> None:
        for each in tools:
            server.runtime.catalogue.register(each)

    threading.Thread(target=register).start()


async def test_a_handshake_client_is_notified_of_new_tools_on_its_stream() -> None:
    notified = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            notified.set()

    async with connected("legacy", message_handler=on_message) as (client, server):
        before = {tool.name for tool in (await client.list_tools()).tools}
        register_from_a_thread(server, late)
        await notified.wait()
        assert {tool.name for tool in (await client.list_tools()).tools} - before == {"late"}
        await client.call_tool("late", {})
        notified.clear()
        register_from_a_thread(server, later)
        await notified.wait()


async def test_a_client_of_the_deprecated_transport_is_counted_and_notified_as_any() -> None:
    notified = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            notified.set()

    async with serving(TOOLS, sse=True) as server:
        sessions = server.runtime.sessions
        assert sessions is not None
        async with Client(sse_client(f"http://127.0.0.1:{server.port}/sse"), mode="legacy", message_handler=on_message):
            assert sessions.count == 1
            async with Client(server.url, mode="legacy"):
                assert sessions.count == 2
            register_from_a_thread(server, late)
            await notified.wait()
        await until(lambda: sessions.count == 0)


async def test_a_modern_client_that_listens_is_told_of_new_tools() -> None:
    async with connected("auto") as (client, server), client.listen(tools_list_changed=True) as changes:
        assert changes.honored == types.SubscriptionFilter(tools_list_changed=True)
        for each in (late, later):
            register_from_a_thread(server, each)
            assert await anext(changes) == ToolsListChanged()
        assert {"late", "later"} <= {tool.name for tool in (await client.list_tools()).tools}


async def test_a_client_that_does_not_read_keeps_no_other_from_being_told() -> None:
    async with serving(TOOLS) as server:
        deaf, other = await open_session(server.port), await open_session(server.port)
        stalled, listening = await deaf.listen(), await other.listen()
        assert server.runtime.sessions is not None
        session = server.runtime.sessions.open._index[deaf.id]
        filling = asyncio.create_task(fill(session))
        ((_, queue),) = session.transport._request_streams.values()
        await until(lambda: queue.statistics().tasks_waiting_send > 0)
        server.runtime.catalogue.register(late)
        assert (await listening.event()).message is None  # type: ignore[union-attr]
        told = await listening.event()
        assert told is not None
        assert told.message == {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        filling.cancel()
        stalled.drop()


async def fill(session: Any) -> None:
    """Say more to a session than anybody takes who does not read."""
    for _ in range(200):
        await session.connection.notify("notifications/message", {"level": "info", "data": "x" * 200_000})
        await asyncio.sleep(0)


class Cable:
    """What is between a client and a server, and can be pulled."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._ends: list[asyncio.StreamWriter] = []
        self._carrying: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[tuple[str, Callable[[], None]]]:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp", self.pull
            self.pull()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    def pull(self) -> None:
        """Break everything that is connected."""
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._server_port)
        self._ends += [writer, back]
        for source, sink in ((reader, back), (there, writer)):
            carrying = asyncio.create_task(self._carry(source, sink))
            self._carrying.add(carrying)
            carrying.add_done_callback(self._carrying.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                sink.write(data)
        sink.close()


async def test_a_session_outlives_the_cable() -> None:
    go_on, notified = asyncio.Event(), asyncio.Event()
    steps: list[float] = []

    @tool
    async def walk(ctx: ToolContext) -> str:
        """Waits half-way."""
        for step in range(1, 11):
            if step == 6:
                await go_on.wait()
            ctx.progress(step, 10)
        return "arrived"

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            notified.set()

    async with (
        serving([walk, tools_under_test.echo]) as server,
        Cable(server.port).laid() as (url, pull),
        Client(url, mode="legacy", message_handler=on_message) as client,
    ):
        call = asyncio.create_task(client.call_tool("walk", {}, progress_callback=on_progress))
        await until(lambda: len(steps) == 5)
        pull()
        go_on.set()
        register_from_a_thread(server, late)
        assert (await call).content == [types.TextContent(text="arrived")]
        assert steps == list(range(1, 11))
        await notified.wait()
        assert (await client.call_tool("echo", {"message": "on"})).structured_content == {"message": "on"}
        await server.recorded(("walk", "success"), ("echo", "success"))


# Many at once.


@tool
async def tell_back(value: str) -> dict[str, str]:
    """Answered by the lane."""
    return {"value": value}


@tool
def tell_back_from_a_thread(value: str) -> dict[str, str]:
    """Answered by the lane."""
    return {"value": value}


@tool
async def tell_back_slowly(value: str, ctx: ToolContext) -> dict[str, str]:
    """Answered by the SDK in a session."""
    ctx.progress(1, 2, value)
    await asyncio.sleep(0.01)
    return {"value": value}


@tool
async def fail_with(value: str) -> dict[str, str]:
    """Answered with an error."""
    raise NotFound(value)


FAST = [tell_back, tell_back_from_a_thread, fail_with]


async def use(url: str, mode: str, number: int, turns: int, ready: asyncio.Barrier) -> None:
    """Be one of many clients, whose ids are the same as everybody's; see nothing that is another's."""
    told: list[str | None] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    # Without certificates to load, which would take the longest.
    http = httpx2.AsyncClient(verify=False, timeout=6 * PATIENCE)
    async with http, Client(streamable_http_client(url, http_client=http), mode=mode) as client:
        await ready.wait()
        for turn in range(turns):
            mine = {"value": f"client {number}, turn {turn}"}
            fast = FAST[(number + turn) % len(FAST)]
            first, second = await asyncio.gather(
                client.call_tool(tool_of(fast).name, mine),
                client.call_tool("tell_back_slowly", mine, progress_callback=on_progress),
            )
            assert second.structured_content == mine
            if fast is fail_with:
                assert error_of(first)["message"] == mine["value"]
            else:
                assert first.structured_content == mine
    assert told == [f"client {number}, turn {turn}" for turn in range(turns)]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """With so many clients in one process, the garbage collector would take half of the time."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.requirement("NFR-PERF-004")
@pytest.mark.parametrize(("clients", "turns"), [(1, 6), (10, 6), (200, 1)])
@both_eras
async def test_clients_at_once_each_get_their_own_answers(
    mode: str, clients: int, turns: int, no_collector: None
) -> None:
    settings = {"resources": {"max_concurrent_executions": 2 * clients}}
    async with serving([*FAST, tell_back_slowly], settings) as server:
        ready = asyncio.Barrier(clients)
        await asyncio.gather(*(use(server.url, mode, number, turns, ready) for number in range(clients)))
        assert len(server.records()) == clients * turns * 2


# Others than the SDK's.


@both_eras
async def test_fastmcps_client_lists_calls_is_told_and_sees_errors(mode: str) -> None:
    fastmcp = pytest.importorskip("fastmcp", reason="FastMCP is not installed: make clients")
    steps: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async with serving(TOOLS) as server, fastmcp.Client(server.url, mode=mode) as client:
        assert {"add", "echo", "health"} <= {tool.name for tool in await client.list_tools()}
        assert (await client.call_tool("add", {"a": 2, "b": 3})).structured_content == {"sum": 5}
        await client.call_tool("count", {"to": 3}, progress_handler=on_progress)
        assert steps == [1, 2, 3]
        refused = await client.call_tool("refuse", {}, raise_on_error=False)
        assert refused.is_error
        assert msgspec.json.decode(refused.content[0].text)["message"] == "There is no such page"


class HttpInspector:
    """`inspector --cli` against a server that runs."""

    def __init__(self, node: Node, program: Path, era: str, url: str) -> None:
        self._node = node
        self._command = (node.node, str(program), "--cli", "--quiet", "--format", "json", "--protocol-era", era, url)

    async def __call__(self, method: str, *options: str) -> Inspection:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *("--transport", "http", "--method", method, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._node.environment,
        )
        stdout, stderr = await asyncio.wait_for(process.communicate(), PATIENCE)
        result = msgspec.json.decode(stdout)["result"] if stdout.strip() else None
        error = msgspec.json.decode(stderr)["error"] if stderr.strip() else None
        assert process.returncode is not None
        return Inspection(process.returncode, result, error)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_inspector_connects_lists_calls_and_sees_errors(node: Node, inspector: Path, era: str) -> None:
    async with serving(TOOLS) as server:
        inspect = HttpInspector(node, inspector, era, server.url)
        connects, lists, calls, counts, refuses = await asyncio.gather(
            inspect("initialize"),
            inspect("tools/list", "--strict"),
            inspect("tools/call", "--tool-name", "add", "--tool-arg", "a=2", "b=3"),
            inspect("tools/call", "--tool-name", "count", "--tool-arg", "to=3"),
            inspect("tools/call", "--tool-name", "refuse"),
        )
    assert connects.result is not None
    assert connects.result["serverInfo"] == {"name": "dragoman", "version": "0.1.0"}
    assert connects.result["protocolVersion"] == {"legacy": "2025-11-25", "modern": "2026-07-28"}[era]
    assert connects.result["capabilities"]["tools"] == {"listChanged": True}
    assert lists.result is not None
    assert (lists.exit_code, lists.error) == (0, None)
    assert {"add", "echo", "health"} <= {tool["name"] for tool in lists.result["tools"]}
    assert calls.result is not None
    assert calls.result["structuredContent"] == {"sum": 5}
    assert counts.exit_code == 0
    assert refuses.exit_code == 5
    assert refuses.error == {"code": "tool_is_error", "message": "Tool 'refuse' returned isError:true."}
