"""Completion records: one for every call, whatever becomes of it, and nothing in it that was secret."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
import pytest

import dragoman
from dragoman import ToolContext, tool
from dragoman.calls.call import Call, Outcome
from dragoman.calls.origin import Origin
from dragoman.errors import NotFound
from dragoman.telemetry.log import StructuredLogger
from dragoman.testing import ManualClock, MemoryClient, SequentialIds, TestServer, open_server
from dragoman.tools.builtin.echo import echo_tool
from tests.support.calls import Held, begin
from tests.support.waiting import PATIENCE


@tool
async def fail() -> None:
    raise RuntimeError("out of paper")


@tool
async def refuse() -> None:
    raise NotFound("no such page")


@pytest.mark.requirement("FND-TIME-08")
async def test_record_of_a_success_holds_these_facts_and_no_others() -> None:
    clock, held = ManualClock(), Held()
    async with open_server([held.tool], clock=clock, ids=SequentialIds()) as server:
        client = await server.client()
        call = begin(client, "hold", _meta={"correlationId": "mine"})
        await held.begun.wait()
        clock.advance(0.0125)
        held.release.set()
        await client.answer(call)
        assert server.records == [
            {
                "timestamp": "2024-01-15T10:30:00.012Z",
                "level": "info",
                "message": "tool call completed",
                "runId": "run-1",
                "correlationId": "mine",
                "toolName": "hold",
                "durationMs": 12.5,
                "outcome": "success",
                "payloadBytes": 2,
            }
        ]


@pytest.mark.requirement("FND-TIME-08", "FND-TIME-07")
@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("echo", {"message": 1}, "INVALID_ARGUMENT"),
        ("nobody", {}, "NOT_FOUND"),
        ("fail", {}, "INTERNAL"),
        ("refuse", {}, "NOT_FOUND"),
    ],
)
async def test_record_of_a_tool_error_names_its_code(name: str, arguments: dict[str, Any], code: str) -> None:
    async with open_server([echo_tool(), fail, refuse], clock=ManualClock(), ids=SequentialIds()) as server:
        await (await server.client()).call_tool(name, arguments)
        assert server.records == [
            {
                "timestamp": "2024-01-15T10:30:00.000Z",
                "level": "info",
                "message": "tool call completed",
                "runId": "run-1",
                "correlationId": "corr-1",
                "toolName": name,
                "durationMs": 0.0,
                "outcome": "tool_error",
                "payloadBytes": 2 if not arguments else 13,
                "errorCode": code,
            }
        ]


@pytest.mark.requirement("FND-TIME-08")
async def test_record_of_a_refusal_for_lack_of_room_warns_and_tells_clients_what_to_do() -> None:
    async with open_server(
        [echo_tool()], {"limits": {"callsPerMinutePerCaller": 1}, "tools": {"maxPayloadBytes": 20}}
    ) as server:
        client = await server.client()
        for message in ("hi", "hi", "x" * 20):
            await client.call_tool("echo", {"message": message})
        _, *refused = server.records
    for record in refused:
        assert (record["level"], record["outcome"], record["errorCode"]) == ("warn", "tool_error", "RESOURCE_EXHAUSTED")
    hints = [(record["reason"], record.get("hint")) for record in refused]
    assert hints == [
        ("rate_limited", "Clients should retry with exponential backoff and jitter."),
        ("payload_too_large", None),
    ]


@pytest.mark.requirement("FND-TIME-08")
async def test_record_of_arguments_that_were_too_large_says_how_large_they_were() -> None:
    async with open_server([echo_tool()], {"tools": {"maxPayloadBytes": 20}}) as server:
        await (await server.client()).call_tool("echo", {"message": "x" * 100})
        assert [record["payloadBytes"] for record in server.records] == [len('{"message":""}') + 100]


@pytest.mark.requirement("FND-TIME-08")
async def test_arguments_and_results_stay_out_of_the_log() -> None:
    @tool
    async def read(path: str, key: str = "") -> dict[str, str]:
        return {"content": "result-42"}

    async with open_server([read, echo_tool()], {"logging": {"level": "debug"}}) as server:
        client = await server.client()
        await client.call_tool("read", {"path": "argument-42", "key": "argument-42"})
        await client.call_tool("read", {"path": ["argument-42"]})
        await client.call_tool("echo", {"message": {"argument-42": "argument-42"}})
        await client.call_tool("nobody", {"x": "argument-42"})
        assert len(server.records) == 4
        assert b"argument-42" not in server.stderr
        assert b"result-42" not in server.stderr


@pytest.mark.requirement("FND-TIME-08")
@pytest.mark.parametrize("name", ["a\nb", "a\r\x00b", "\x1b[2Jb", "a\u2028b", "a\u202eb", '{"level":"error"}\n'])
async def test_name_that_would_forge_a_line_is_written_harmlessly(name: str) -> None:
    async with open_server() as server:
        await (await server.client()).call_tool(name)
        (line,) = server.stderr.splitlines()
        (record,) = server.records
    assert line.decode().isprintable()
    assert record["toolName"].isprintable()
    assert record["level"] == "info"


Scenario: TypeAlias = Callable[[TestServer, MemoryClient, ManualClock, Held], Awaitable[None]]


async def _in_time(server: TestServer, client: MemoryClient, clock: ManualClock, held: Held) -> None:
    held.release.set()
    await client.call_tool("hold")


async def _late(server: TestServer, client: MemoryClient, clock: ManualClock, held: Held) -> None:
    begin(client, "hold")
    await held.begun.wait()
    clock.advance(60)
    held.release.set()


async def _disconnected(server: TestServer, client: MemoryClient, clock: ManualClock, held: Held) -> None:
    begin(client, "hold")
    await held.begun.wait()
    client.disconnect()
    held.release.set()


async def _disconnected_and_late(server: TestServer, client: MemoryClient, clock: ManualClock, held: Held) -> None:
    begin(client, "hold")
    await held.begun.wait()
    client.disconnect()
    clock.advance(60)
    held.release.set()


async def _late_and_disconnected(server: TestServer, client: MemoryClient, clock: ManualClock, held: Held) -> None:
    begin(client, "hold")
    await held.begun.wait()
    clock.advance(60)
    client.disconnect()
    held.release.set()


async def _aborted_by_disconnect(server: TestServer, client: MemoryClient, clock: ManualClock, held: Held) -> None:
    begin(client, "obey")
    await held.begun.wait()
    client.disconnect()


async def _aborted_by_client(server: TestServer, client: MemoryClient, clock: ManualClock, held: Held) -> None:
    call = begin(client, "obey")
    await held.begun.wait()
    client.notify("notifications/cancelled", {"requestId": call})


async def _aborted_at_deadline(server: TestServer, client: MemoryClient, clock: ManualClock, held: Held) -> None:
    begin(client, "obey")
    await held.begun.wait()
    clock.advance(60)


async def _cancelled_by_hand(server: TestServer, client: MemoryClient, clock: ManualClock, held: Held) -> None:
    begin(client, "give_up")
    await held.begun.wait()
    client.disconnect()


async def _withdrawn(server: TestServer, client: MemoryClient, clock: ManualClock, held: Held) -> None:
    call = begin(client, "hold")
    await held.begun.wait()
    client.notify("notifications/cancelled", {"requestId": call})
    held.release.set()


async def _withdrawn_and_disconnected(server: TestServer, client: MemoryClient, clock: ManualClock, held: Held) -> None:
    call = begin(client, "hold")
    await held.begun.wait()
    client.notify("notifications/cancelled", {"requestId": call})
    client.disconnect()
    held.release.set()


async def _failed(server: TestServer, client: MemoryClient, clock: ManualClock, held: Held) -> None:
    await client.call_tool("fail")


async def _refused(server: TestServer, client: MemoryClient, clock: ManualClock, held: Held) -> None:
    await client.call_tool("hold", {"extra": 1})


@pytest.mark.requirement("FND-TIME-05", "FND-TIME-07")
@pytest.mark.parametrize(
    ("scenario", "outcome"),
    [
        (_in_time, "success"),
        (_failed, "tool_error"),
        (_refused, "tool_error"),
        (_late, "late_completed"),
        (_aborted_at_deadline, "late_completed"),
        (_disconnected, "disconnected_completed"),
        (_disconnected_and_late, "late_completed"),
        (_late_and_disconnected, "late_completed"),
        (_aborted_by_disconnect, "aborted"),
        (_cancelled_by_hand, "aborted"),
        (_aborted_by_client, "aborted"),
        (_withdrawn, "success"),
        (_withdrawn_and_disconnected, "disconnected_completed"),
    ],
)
async def test_every_end_of_a_call_has_its_one_record(scenario: Scenario, outcome: str) -> None:
    clock, held = ManualClock(), Held()

    @tool
    async def obey(context: ToolContext) -> None:
        held.begun.set()
        await context.cancellation.wait()
        context.cancellation.raise_if_set()

    @tool
    async def give_up(context: ToolContext) -> None:
        held.begun.set()
        await context.cancellation.wait()
        raise asyncio.CancelledError

    async with open_server([held.tool, obey, give_up, fail], clock=clock, ids=SequentialIds()) as server:
        await scenario(server, await server.client(), clock, held)
        assert await server.runtime.runner.drain(PATIENCE)
        assert [(record["runId"], record["outcome"]) for record in server.records] == [("run-1", outcome)]
        assert server.runtime.slots.in_use == 0


@pytest.mark.requirement("FND-TIME-08")
async def test_record_of_an_aborted_call_carries_the_code_of_its_end() -> None:
    begun = asyncio.Event()

    @tool
    async def obey(context: ToolContext) -> None:
        begun.set()
        await context.cancellation.wait()
        context.cancellation.raise_if_set()

    async with open_server([obey]) as server:
        client = await server.client()
        begin(client, "obey")
        await begun.wait()
        client.disconnect()
        assert await server.runtime.runner.drain(PATIENCE)
        assert [record["errorCode"] for record in server.records] == ["ABORTED"]


async def test_slot_is_free_when_the_answer_goes_out_and_the_record_follows_it() -> None:
    order: list[Any] = []
    logger = StructuredLogger(lambda entry: order.append(msgspec.to_builtins(entry)["message"]))

    def reply(call: Call, outcome: Outcome) -> None:
        order.append((outcome.value, runtime.slots.in_use))

    async with dragoman.open([echo_tool()], logger=logger) as runtime:
        runtime.runner.submit(Call(Origin(), "echo", {"message": "hi"}, "run-1", "corr-1", reply))
        assert await runtime.runner.drain(PATIENCE)
    assert order == [({"message": "hi"}, 0), "tool call completed"]


async def test_whoever_watches_is_shown_each_record_and_its_call() -> None:
    shown: list[tuple[str, str, str]] = []
    async with open_server([echo_tool(), fail]) as server:
        server.runtime.observers.append(lambda record, call: shown.append((record.run_id, call.run_id, record.outcome)))
        client = await server.client()
        await client.call_tool("echo", {"message": "x"})
        await client.call_tool("fail", {})
        assert [(seen == made, outcome) for seen, made, outcome in shown] == [(True, "success"), (True, "tool_error")]
