"""The runtime inside a process: opened, called and closed, with every part passed in and nothing behind one's back."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from msgspec import to_builtins

import dragoman
from dragoman import Caller, Config, ServerOptions, ToolContext, create_server, tool
from dragoman.calls.settings import ResourcesConfig
from dragoman.calls.slots import Slots
from dragoman.errors import ConfigError, DuplicateTool, InternalFailure, InvalidArgument, NotFound, TimedOut
from dragoman.runtime import ServerState
from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.testing import ManualClock, MemoryClient, SequentialIds, open_server
from dragoman.testing.wire import MemoryWire
from dragoman.tools.builtin.echo import echo_tool
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.settings import ToolsConfig
from tests.support.calls import Held, answers, begin
from tests.support.waiting import PATIENCE


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool
async def fail() -> None:
    raise RuntimeError("secret-42")


# Called in the same process


async def test_call_gives_the_handlers_own_value() -> None:
    async with dragoman.open([add, echo_tool()]) as runtime:
        outcome = await runtime.call("add", {"a": 1, "b": 2})
        assert (outcome.is_error, outcome.value, outcome.unwrap()) == (False, 3, 3)
        assert (await runtime.call("echo", {"message": "hi"})).unwrap() == {"message": "hi"}
        assert (await runtime.call("health")).unwrap()["status"] == "healthy"


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("nobody", {}, NotFound),
        ("add", {"a": 1}, InvalidArgument),
        ("add", {"a": 1, "b": object()}, InvalidArgument),
        ("fail", None, InternalFailure),
    ],
)
async def test_call_goes_through_the_same_steps_and_its_error_can_be_raised(
    name: str, arguments: dict[str, Any] | None, kind: type[Exception]
) -> None:
    async with dragoman.open([add, fail]) as runtime:
        outcome = await runtime.call(name, arguments)
        assert outcome.is_error
        with pytest.raises(kind) as caught:
            outcome.unwrap()
        assert "secret-42" not in str(caught.value)
        assert runtime.slots.in_use == 0


async def test_call_also_gives_what_a_client_would_read() -> None:
    async with dragoman.open([add, fail], {"response": {"dialect": "plain"}}) as runtime:
        done = (await runtime.call("add", {"a": 1, "b": 2})).rendered
        refused = (await runtime.call("none")).rendered
    assert done is not None
    assert refused is not None
    assert (to_builtins(done.content), done.is_error) == ([{"type": "text", "text": "3"}], False)
    assert (to_builtins(refused.content), refused.is_error) == (
        [{"type": "text", "text": "Module not found: none"}],
        True,
    )


async def test_call_that_takes_too_long_ends_in_a_timeout() -> None:
    clock, held = ManualClock(), Held(timeout_ms=50)
    async with dragoman.open([held.tool], clock=clock) as runtime:
        calling = asyncio.ensure_future(runtime.call("hold"))
        await held.begun.wait()
        clock.advance(0.1)
        outcome = await calling
        assert isinstance(outcome.error, TimedOut)
        assert runtime.slots.in_use == 1
        held.release.set()
        assert await runtime.runner.drain(PATIENCE)
        assert runtime.slots.in_use == 0


async def test_cancelling_the_wait_for_a_call_asks_its_handler_to_stop() -> None:
    begun = asyncio.Event()
    reasons: list[str | None] = []

    @tool
    async def obey(context: ToolContext) -> None:
        begun.set()
        await context.cancellation.wait()
        reasons.append(context.cancellation.reason)
        context.cancellation.raise_if_set()

    async with open_server([obey]) as server:
        calling = asyncio.ensure_future(server.runtime.call("obey"))
        await begun.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert await server.runtime.runner.drain(PATIENCE)
        assert [record["outcome"] for record in server.records] == ["aborted"]
        assert server.runtime.slots.in_use == 0
    assert reasons == ["client"]


async def test_call_tells_the_handler_who_calls_and_under_which_id() -> None:
    seen: list[ToolContext] = []

    @tool
    async def look(context: ToolContext) -> None:
        seen.append(context)

    me = Caller("me")
    async with dragoman.open([look], ids=SequentialIds()) as runtime:
        await runtime.call("look", caller=me, correlation_id="mine")
        await runtime.call("look")
    assert [(context.run_id, context.correlation_id) for context in seen] == [("run-1", "mine"), ("run-2", "corr-1")]
    assert seen[0].caller is me
    assert seen[1].caller != me


async def test_log_of_a_handler_carries_the_ids_of_its_call() -> None:
    @tool
    async def say(context: ToolContext) -> None:
        context.logger.info("half way", {"step": 1})

    async with open_server([say], clock=ManualClock(), ids=SequentialIds()) as server:
        await server.runtime.call("say")
        assert server.log[0] == {
            "timestamp": "2024-01-15T10:30:00.000Z",
            "level": "info",
            "message": "half way",
            "runId": "run-1",
            "correlationId": "corr-1",
            "step": 1,
        }


async def test_handler_may_call_other_tools() -> None:
    @tool
    async def twice(a: int) -> int:
        half = await runtime.call("add", {"a": a, "b": 0})
        return 2 * half.unwrap()

    async with dragoman.open([add, twice], {"resources": {"maxConcurrentExecutions": 2}}) as runtime:
        assert (await runtime.call("twice", {"a": 4})).unwrap() == 8
        assert runtime.slots.in_use == 0


async def test_runtime_is_running_inside_the_block_and_closed_after_it_even_when_that_fails() -> None:
    seen = []
    with suppress(ZeroDivisionError):
        async with dragoman.open([add]) as runtime:
            seen.append(runtime.state)
            raise ZeroDivisionError
    assert [*seen, runtime.state] == [ServerState.RUNNING, ServerState.CLOSED]


async def test_two_runtimes_in_one_process_share_nothing() -> None:
    async with (
        dragoman.open([add], {"resources": {"maxConcurrentExecutions": 1}}) as one,
        dragoman.open([echo_tool()]) as other,
    ):
        assert (await other.call("add", {"a": 1, "b": 2})).is_error
        assert not (await one.call("add", {"a": 1, "b": 2})).is_error
        assert (one.slots.limit, other.slots.limit) == (1, 10)


async def test_settings_are_taken_in_either_spelling_and_misspelt_ones_are_named() -> None:
    async with dragoman.open(config={"resources": {"maxConcurrentExecutions": 3}}) as runtime:
        assert runtime.slots.limit == 3
    async with dragoman.open(config=Config(resources=ResourcesConfig(max_concurrent_executions=4))) as runtime:
        assert runtime.slots.limit == 4
    with pytest.raises(ConfigError, match="maxConcurentExecutions"):
        async with dragoman.open(config={"resources": {"maxConcurentExecutions": 3}}):
            pass


# Made of parts


async def test_factory_uses_the_parts_it_is_given() -> None:
    entries: list[Entry] = []
    clock, ids, config = ManualClock(), SequentialIds(), Config(tools=ToolsConfig(max_payload_bytes=64))
    logger = StructuredLogger(entries.append, clock)
    catalogue, slots = Catalogue(config.tools, logger), Slots(config.resources, config.tools, clock)
    catalogue.register(add)
    server = create_server(
        ServerOptions(
            config=config,
            clock=clock,
            ids=ids,
            logger=logger,
            catalogue=catalogue,
            slots=slots,
            tools=[echo_tool()],
        )
    )
    assert (server.config, server.clock, server.ids) == (config, clock, ids)
    assert (server.logger, server.catalogue, server.slots) == (logger, catalogue, slots)
    await server.start()
    clock.advance(1)
    assert (await server.call("echo", {"message": "x" * 64})).is_error
    assert slots.consecutive_refusals == 1
    assert (await server.call("add", {"a": 1, "b": 2})).unwrap() == 3
    await server.stop()
    assert [definition.name for definition in catalogue.list()] == ["add", "echo", "health"]
    assert [(entry["timestamp"], entry["runId"], entry["correlationId"]) for entry in map(to_builtins, entries)] == [
        ("2024-01-15T10:30:01.000Z", "run-1", "corr-1"),
        ("2024-01-15T10:30:01.000Z", "run-2", "corr-2"),
    ]


def test_two_tools_of_one_name_are_refused_when_the_server_is_made() -> None:
    with pytest.raises(DuplicateTool, match="'add'"):
        create_server(ServerOptions(tools=[add, add]))
    with pytest.raises(DuplicateTool, match="'health'"):
        create_server(ServerOptions(tools=[tool(name="health")(lambda: None)]))


def test_making_a_server_starts_nothing_and_needs_no_event_loop() -> None:
    before = set(threading.enumerate())
    server = create_server(ServerOptions(tools=[add]))
    assert (server.state, set(threading.enumerate()) - before) == (ServerState.STARTING, set())


IMPORT_ONLY = """
import sys, threading
before = set(sys.modules)
import dragoman
after = set(sys.modules) - before
print(sorted(name for name in after if name.startswith("dragoman")), threading.active_count())
from dragoman import ServerOptions, create_server, tool, testing
create_server(ServerOptions())
print(sorted({"mcp", "mcp_types", "anyio", "pydantic", "typer", "rich"} & set(sys.modules)), threading.active_count())
"""


@pytest.mark.slow
def test_importing_does_nothing_and_making_a_server_loads_neither_the_sdk_nor_the_command_line() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT_ONLY], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert (ran.stdout, ran.stderr) == ("['dragoman', 'dragoman.version'] 1\n[] 1\n", "")


def test_everything_that_is_promised_can_be_imported_and_nothing_else_can() -> None:
    assert [name for name in dragoman.__all__ if getattr(dragoman, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dragoman.nothing  # type: ignore[attr-defined]


# The list of tools


async def heard(client: MemoryClient, count: int) -> list[str]:
    """The methods of the notifications, when there are at least `count` of them."""
    async with asyncio.timeout(PATIENCE):
        while len(methods := [message["method"] for message in client.received() if "method" in message]) < count:
            await client.wire.wait()
    return methods


async def test_clients_are_told_when_a_thread_changes_the_tools() -> None:
    async with open_server() as server:
        client, other = await server.client(), await server.client()
        half_way, modern = server.connect(), server.connect(modern=True)
        await half_way.initialize()
        await modern.request("tools/list")
        catalogue = server.runtime.catalogue
        await asyncio.to_thread(catalogue.register, add)
        assert await heard(client, 1) == ["notifications/tools/list_changed"]
        assert [entry["name"] for entry in await client.list_tools()] == ["add", "health"]
        assert await asyncio.to_thread(catalogue.unregister, "add")
        assert await heard(client, 2) == ["notifications/tools/list_changed"] * 2
        assert await heard(other, 2) == ["notifications/tools/list_changed"] * 2
        assert [entry["name"] for entry in await client.list_tools()] == ["health"]
        assert not await asyncio.to_thread(catalogue.unregister, "add")
        await asyncio.sleep(0)
        assert len(await heard(client, 2)) == 2
        assert [message for one in (half_way, modern) for message in one.received() if "method" in message] == []


class NotingWire(MemoryWire):
    """Notes which thread each line came from."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def send(self, line: bytes, *, more: bool) -> None:
        self.threads.append(threading.get_ident())
        super().send(line, more=more)


HANDSHAKE = b"""\
{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},\
"clientInfo":{"name":"c","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
"""


async def test_wire_is_used_on_the_event_loop_only_whichever_thread_changes_the_tools() -> None:
    wire = NotingWire()
    async with open_server() as server:
        server.runtime.connect(wire).receive(HANDSHAKE)
        await wire.wait()
        await asyncio.to_thread(server.runtime.catalogue.register, add)
        async with asyncio.timeout(PATIENCE):
            await wire.wait()
    assert wire.threads == [threading.get_ident()] * 2


async def test_call_under_way_outlives_its_tool() -> None:
    held = Held()
    async with open_server([held.tool]) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        server.runtime.catalogue.unregister("hold")
        held.release.set()
        assert (await client.answer(call))["result"]["isError"] is False
        assert (await client.call_tool("hold"))["isError"] is True


# The same again


async def conversation() -> tuple[list[bytes], bytes]:
    """Everything that a server said and logged in a conversation with a bit of everything."""
    clock, held = ManualClock(), Held(timeout_ms=50)
    async with open_server(
        [add, fail, held.tool], {"logging": {"level": "debug"}}, clock=clock, ids=SequentialIds()
    ) as server:
        client = await server.client()
        await client.list_tools()
        await client.call_tool("add", {"a": 1, "b": 2})
        await client.call_tool("add", {"a": "1"}, {"correlationId": "mine"})
        await client.call_tool("nobody")
        await client.call_tool("fail")
        client.send(b'nonsense\n[]\n{"jsonrpc":"2.0","id":"x","method":"no/such"}\n')
        clock.advance(1.2345)
        call = begin(client, "hold")
        await held.begun.wait()
        clock.advance(0.1)
        assert len(answers(client, call)) == 1
        held.release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        client.disconnect()
        return client.wire.lines, server.stderr


@pytest.mark.requirement("FND-TEST-01")
async def test_same_inputs_give_the_same_bytes_and_the_same_log() -> None:
    lines, log = await conversation()
    assert (lines, log) == await conversation()
    assert len(lines) == 10
    assert len(log.splitlines()) == 12
    assert log.splitlines()[-1] == (
        b'{"timestamp":"2024-01-15T10:30:01.334Z","level":"debug","message":"connection closed",'
        b'"connectionCorrelationId":"conn-1"}'
    )


@pytest.mark.slow
async def test_calls_leave_nothing_behind_in_memory() -> None:
    async with open_server([echo_tool()]) as server:
        client = await server.client()

        async def make_calls() -> None:
            for _ in range(200):
                await client.call_tool("echo", {"message": "x"})
            client.wire.lines.clear()
            client.messages.clear()
            client._read = 0
            server.entries.clear()

        await make_calls()
        tracemalloc.start()
        try:
            await make_calls()
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(3):
                await make_calls()
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (after - before) / 600 < 16  # Bytes for each call; the smallest object takes more.
