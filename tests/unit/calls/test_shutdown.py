"""Stopping: running calls finish in the time they are given, new ones are told to come back, nothing hangs."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import msgspec
import pytest

import dragoman
from dragoman import ServerOptions, create_server, tool
from dragoman.calls.call import Outcome
from dragoman.errors import ResourceExhausted
from dragoman.process.settings import ServerConfig
from dragoman.protocol.session import State
from dragoman.runtime import ServerState
from dragoman.testing import ManualClock, SequentialIds, open_server
from dragoman.tools.builtin.echo import echo_tool
from tests.support.answers import error_in
from tests.support.calls import Held, Hung, answers, begin, happened
from tests.support.waiting import PATIENCE


@pytest.mark.requirement("FND-CONN-06")
async def test_stopping_waits_for_running_calls_and_they_are_answered() -> None:
    held = Held()
    async with open_server([held.tool]) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        stopping = asyncio.ensure_future(server.runtime.stop(5))
        await asyncio.sleep(0)
        assert server.runtime.state is ServerState.DRAINING
        assert not stopping.done()
        held.release.set()
        assert await stopping == 0
        (answer,) = answers(client, call)
        assert answer["result"]["isError"] is False
        assert (server.runtime.state, client.state) == (ServerState.CLOSED, State.CLOSED)
        assert [record["outcome"] for record in server.records] == ["success"]
        assert [entry["message"] for entry in server.log] == ["tool call completed"]


@pytest.mark.requirement("FND-CONN-06")
def test_running_calls_are_given_ten_seconds_unless_told_otherwise() -> None:
    assert ServerConfig().shutdown_timeout_ms == 10_000


async def test_new_calls_are_refused_as_retryable_while_the_server_drains() -> None:
    held = Held()
    async with open_server([held.tool], ids=SequentialIds()) as server:
        client = await server.client()
        begin(client, "hold")
        await held.begun.wait()
        stopping = asyncio.ensure_future(server.runtime.stop(5))
        await asyncio.sleep(0)
        over_the_wire = error_in(await client.call_tool("health"))
        in_process = await server.runtime.call("unknown")
        held.release.set()
        await stopping
        assert [record["outcome"] for record in server.records] == ["tool_error", "tool_error", "success"]
    assert over_the_wire == {
        "code": "RESOURCE_EXHAUSTED",
        "message": "The server is stopping",
        "details": {"reason": "stopping", "retryable": True},
        "runId": "run-2",
        "correlationId": "corr-2",
    }
    assert isinstance(in_process.error, ResourceExhausted)
    assert in_process.error.details == {"reason": "stopping", "retryable": True}


@pytest.mark.requirement("FND-CONN-06", "FND-TIME-06", "FND-TIME-07")
@pytest.mark.parametrize("kind", [Held, Hung])
async def test_call_that_outlasts_the_time_is_abandoned_with_its_one_record(kind: type[Held | Hung]) -> None:
    handler, clock = kind("work"), ManualClock()
    config = {"server": {"shutdownTimeoutMs": 20}}
    async with open_server([handler.tool], config, clock=clock, ids=SequentialIds()) as server:
        client = await server.client()
        call = begin(client, "work")
        await (handler.begun.wait() if isinstance(handler, Held) else happened(handler.begun))
        clock.advance(1.5)
        async with asyncio.timeout(PATIENCE):
            assert await server.runtime.stop() == 1
        await asyncio.sleep(0)
        assert server.runtime.slots.in_use == 0
        handler.release.set()
        if isinstance(handler, Hung):
            await happened(handler.finished)
        await asyncio.sleep(0)
        assert client.state is State.CLOSED
        assert len(answers(client, call)) <= 1
        assert server.log == [
            {
                "timestamp": "2024-01-15T10:30:01.500Z",
                "level": "warn",
                "message": "tool call completed",
                "runId": "run-1",
                "correlationId": "corr-1",
                "toolName": "work",
                "durationMs": 1500.0,
                "outcome": "timeout",
                "payloadBytes": 2,
            },
            {
                "timestamp": "2024-01-15T10:30:01.500Z",
                "level": "warn",
                "message": "slots abandoned at shutdown",
                "count": 1,
            },
        ]


UNSURE = "The server is shutting down, and the tool had not finished"


@pytest.mark.requirement("FND-CONN-06", "INV-MCP-RESP-006")
@pytest.mark.parametrize(
    "hints", [{}, {"read_only": True}, {"idempotent": True}], ids=["none", "read-only", "idempotent"]
)
@pytest.mark.parametrize("dialect", ["structured", "envelope", "plain"])
async def test_an_abandoned_call_is_told_that_the_server_shuts_down_and_whether_to_repeat(
    dialect: str, hints: dict[str, bool]
) -> None:
    begun = asyncio.Event()

    @tool(**hints)
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    settings = {"response": {"dialect": dialect}, "server": {"shutdownTimeoutMs": 20}}
    async with open_server([work], settings) as server:
        client = await server.client()
        call = begin(client, "work")
        await begun.wait()
        assert await server.runtime.stop() == 1
        ((answer,),) = [each["result"]["content"] for each in answers(client, call)]
    text, retryable = answer["text"], bool(hints)
    if dialect == "plain":
        then = "the call can be repeated" if retryable else "its work may have been done"
        assert text == f"Server is shutting down: the module had not finished; {then}"
    elif dialect == "envelope":
        error = {"code": "SERVICE_UNAVAILABLE", "message": UNSURE, "context": {"reason": "stopping"}}
        assert msgspec.json.decode(text)["error"] == {**error, "retryable": retryable}
    else:
        told = msgspec.json.decode(text)
        assert (told["code"], told["message"]) == ("TIMEOUT", UNSURE)
        assert told["details"] == {"reason": "stopping", "retryable": retryable}


@pytest.mark.requirement("FND-CONN-06")
async def test_each_abandoned_call_has_a_record_of_its_own_whatever_else_happened_to_it() -> None:
    clock = ManualClock()
    late, left, withdrawn = Held("late", timeout_ms=50), Held("left"), Held("withdrawn")
    async with open_server([late.tool, left.tool, withdrawn.tool], clock=clock) as server:
        client, leaver = await server.client(), await server.client()
        begin(client, "late")
        begin(leaver, "left")
        call = begin(client, "withdrawn")
        for held in (late, left, withdrawn):
            await held.begun.wait()
        clock.advance(0.1)
        leaver.disconnect()
        client.notify("notifications/cancelled", {"requestId": call})
        assert await server.runtime.stop(0) == 3
        await asyncio.sleep(0)
        records = sorted((record["toolName"], record["outcome"]) for record in server.records)
    assert records == [("late", "timeout"), ("left", "timeout"), ("withdrawn", "timeout")]


async def test_token_of_an_abandoned_call_says_shutdown() -> None:
    held = Held()
    async with open_server([held.tool]) as server:
        begin(await server.client(), "hold")
        await held.begun.wait()
        await server.runtime.stop(0)
    assert [token.reason for token in held.tokens] == ["shutdown"]


async def test_handler_that_will_not_be_cancelled_neither_delays_the_stop_nor_is_recorded_twice() -> None:
    begun, release, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> None:
        begun.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        ended.set()

    async with open_server([stubborn]) as server:
        begin(await server.client(), "stubborn")
        await begun.wait()
        async with asyncio.timeout(PATIENCE):
            assert await server.runtime.stop(0) == 1
        release.set()
        await ended.wait()
        assert await server.runtime.runner.drain(PATIENCE)
        assert [record["outcome"] for record in server.records] == ["timeout"]


async def test_caller_in_the_same_process_is_told_when_its_call_is_abandoned() -> None:
    hung = Hung()
    async with dragoman.open([hung.tool]) as runtime:
        calling = asyncio.ensure_future(runtime.call("hang"))
        await happened(hung.begun)
        assert await runtime.stop(0) == 1
        done, _ = await asyncio.wait([calling], timeout=PATIENCE)
        hung.release.set()
        calling.cancel()
    assert done, "the caller would have waited for ever"
    assert calling.result().is_error


async def test_stopping_twice_or_before_the_start_does_nothing() -> None:
    runtime = create_server(ServerOptions())
    assert (await runtime.stop(), runtime.state) == (0, ServerState.CLOSED)
    assert await runtime.stop() == 0


async def test_server_passes_through_its_states_in_order() -> None:
    held = Held()
    runtime = create_server(ServerOptions(tools=[held.tool]))
    states = [runtime.state]
    await runtime.start()
    states.append(runtime.state)
    calling = asyncio.ensure_future(runtime.call("hold"))
    await held.begun.wait()
    stopping = asyncio.ensure_future(runtime.stop(5))
    await asyncio.sleep(0)
    states.append(runtime.state)
    held.release.set()
    await asyncio.gather(stopping, calling)
    states.append(runtime.state)
    assert [state.value for state in states] == ["starting", "running", "draining", "closed"]


HANGING = """
import asyncio, threading, dragoman

begun = threading.Event()

@dragoman.tool
def hang() -> None:
    begun.set()
    threading.Event().wait()

async def main() -> None:
    async with dragoman.open([hang], {"server": {"shutdownTimeoutMs": 10}}) as runtime:
        calling = asyncio.ensure_future(runtime.call("hang"))
        while not begun.is_set():
            await asyncio.sleep(0.001)

asyncio.run(main())
print("over")
"""


@pytest.mark.slow
def test_hung_thread_cannot_keep_the_process_alive() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert (ended.stdout, ended.stderr) == ("over\n", "")


async def test_call_that_came_too_late_to_begin_is_refused_as_retryable() -> None:
    async with open_server([echo_tool()], clock=ManualClock(), ids=SequentialIds()) as server:
        client = await server.client()
        call = begin(client, "echo", arguments={"message": "hi"})
        begun = server.runtime.runner.under_way == 0  # As it has where tasks start eagerly.
        assert server.runtime.runner.abandon() == 0
        (answer,) = answers(client, call)
        assert answer["result"]["isError"] is not begun
        if not begun:
            assert error_in(answer["result"])["details"] == {"reason": "stopping", "retryable": True}
        outcome = "success" if begun else "tool_error"
        assert [(record["outcome"], record["durationMs"]) for record in server.records] == [(outcome, 0.0)]


async def test_runtime_is_started_once() -> None:
    async with open_server() as server:
        with pytest.raises(RuntimeError, match="started once"):
            await server.runtime.start()


async def test_connection_is_idle_after_a_disconnect_whatever_had_not_begun() -> None:
    async with open_server() as server:
        client = await server.client()
        client.begin("resources/list")
        client.disconnect()
        assert client.connection.is_idle


@pytest.mark.slow
async def test_calls_that_are_refused_while_the_server_stops_do_not_prolong_the_stop() -> None:
    most = 5_000
    async with open_server([echo_tool()]) as server:
        calls: list[asyncio.Task[Outcome]] = []

        async def call_without_end() -> None:
            while len(calls) < most:
                calls.append(asyncio.create_task(server.runtime.call("echo", {"message": "hi"})))
                await asyncio.sleep(0)

        calling = asyncio.create_task(call_without_end())
        while len(calls) < 5:  # noqa: ASYNC110 -- until some are under way.
            await asyncio.sleep(0)
        assert await server.runtime.stop(PATIENCE) == 0
        assert len(calls) < most
        await calling
        last = await calls[-1]
        assert isinstance(last.error, ResourceExhausted)
