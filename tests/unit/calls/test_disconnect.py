"""Clients that leave, and clients that change their mind: nothing is written, nothing leaks, everything is recorded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman import ToolContext, tool
from dragoman.protocol.session import State
from dragoman.testing import ManualClock, SequentialIds, open_server
from tests.support.calls import Held, Hung, answers, begin, happened
from tests.support.waiting import PATIENCE


@pytest.mark.requirement("FND-CONN-01")
async def test_disconnected_session_is_closed_and_nothing_more_is_written_for_it() -> None:
    contexts: list[ToolContext] = []
    begun, release = asyncio.Event(), asyncio.Event()

    @tool
    async def hold(context: ToolContext) -> str:
        contexts.append(context)
        begun.set()
        await release.wait()
        context.progress(1)
        return "done"

    clock = ManualClock()
    async with open_server([hold], clock=clock) as server:
        client = await server.client()
        begin(client, "hold", _meta={"progressToken": 1})
        await begun.wait()
        written = len(client.wire.lines)
        client.disconnect()
        contexts[0].progress(1)
        client.send(b'{"jsonrpc":"2.0","id":9,"method":"ping"}\nnonsense\n')
        clock.advance(60)
        release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert client.state is State.CLOSED
        assert len(client.wire.lines) == written


@pytest.mark.requirement("FND-CONN-02")
async def test_disconnect_sets_the_tokens_of_its_own_calls_and_of_no_others() -> None:
    mine, also_mine, other = Held("mine"), Held("also_mine"), Held("other")
    async with open_server([mine.tool, also_mine.tool, other.tool]) as server:
        leaver, stayer = await server.client(), await server.client()
        begin(leaver, "mine")
        begin(leaver, "also_mine")
        call = begin(stayer, "other")
        for held in (mine, also_mine, other):
            await held.begun.wait()
        leaver.disconnect()
        reasons = [held.tokens[0].reason for held in (mine, also_mine, other)]
        for held in (mine, also_mine, other):
            held.release.set()
        assert (await stayer.answer(call))["result"]["isError"] is False
    assert reasons == ["disconnect", "disconnect", None]


@pytest.mark.requirement("FND-CONN-03", "FND-CONN-04")
@pytest.mark.parametrize("kind", [Held, Hung])
async def test_handler_without_a_client_keeps_its_slot_until_it_ends_and_is_recorded(kind: type[Held | Hung]) -> None:
    handler = kind("work")
    async with open_server([handler.tool], ids=SequentialIds()) as server:
        client = await server.client()
        begin(client, "work")
        await (handler.begun.wait() if isinstance(handler, Held) else happened(handler.begun))
        client.disconnect()
        assert (server.runtime.slots.in_use, server.records) == (1, [])
        handler.release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert server.runtime.slots.in_use == 0
        assert [(record["runId"], record["outcome"]) for record in server.records] == [
            ("run-1", "disconnected_completed")
        ]


@pytest.mark.requirement("FND-CONN-05", "FND-CONN-03")
@pytest.mark.parametrize("moment", ["opened", "half_way", "idle", "sent", "running", "late", "answered", "twice"])
async def test_client_may_leave_at_any_moment(moment: str) -> None:
    clock, held = ManualClock(), Held(timeout_ms=50)
    async with open_server([held.tool], clock=clock) as server:
        client = server.connect()
        if moment == "half_way":
            await client.initialize()
        elif moment != "opened":
            await client.handshake()
        if moment in ("sent", "running", "late", "answered", "twice"):
            call = begin(client, "hold")
            if moment != "sent":
                await held.begun.wait()
            if moment == "late":
                clock.advance(0.1)
            if moment == "answered":
                held.release.set()
                await client.answer(call)
        client.disconnect()
        if moment == "twice":
            client.disconnect()
        held.release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert len(server.records) == (0 if moment in ("opened", "half_way", "idle") else 1)
        assert client.connection not in server.runtime.connections
        assert (client.state, server.runtime.slots.in_use) == (State.CLOSED, 0)
        assert (await (await server.client()).call_tool("hold"))["isError"] is False


async def test_call_that_its_client_withdraws_is_never_answered() -> None:
    held = Held()
    async with open_server([held.tool], ids=SequentialIds()) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        client.notify("notifications/cancelled", {"requestId": call, "reason": "changed my mind"})
        assert held.tokens[0].reason == "client"
        assert server.runtime.slots.in_use == 1
        held.release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert (await client.request("ping"))["result"] == {}
        assert answers(client, call) == []
        assert [entry["message"] for entry in server.log] == ["call cancelled by its client", "tool call completed"]
        cancelled = server.log[0]
    assert (cancelled["runId"], cancelled["correlationId"], cancelled["reason"]) == (
        "run-1",
        "corr-1",
        "changed my mind",
    )


async def test_call_that_was_withdrawn_is_not_answered_at_its_deadline_either() -> None:
    clock, held = ManualClock(), Held(timeout_ms=50)
    async with open_server([held.tool], clock=clock) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        client.notify("notifications/cancelled", {"requestId": call})
        clock.advance(1)
        held.release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert answers(client, call) == []
        assert [record["outcome"] for record in server.records] == ["late_completed"]


async def test_call_withdrawn_in_the_breath_that_asked_for_it_is_not_answered_and_recorded_once() -> None:
    held = Held()
    async with open_server([held.tool]) as server:
        client = await server.client()
        call = begin(client, "hold")
        client.notify("notifications/cancelled", {"requestId": call})
        await held.begun.wait()
        held.release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert answers(client, call) == []
        assert len(server.records) == 1


@pytest.mark.parametrize("params", [{"requestId": 99}, {"requestId": "2"}, {"requestId": None}, {}, {"requestId": {}}])
async def test_withdrawing_what_is_not_under_way_changes_nothing(params: dict[str, Any]) -> None:
    held = Held()
    async with open_server([held.tool]) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        client.notify("notifications/cancelled", params)
        assert [token.is_set() for token in held.tokens] == [False]
        held.release.set()
        assert (await client.answer(call))["result"]["isError"] is False
        client.notify("notifications/cancelled", {"requestId": call})
        assert (await client.request("ping"))["result"] == {}
        assert [record["outcome"] for record in server.records] == ["success"]


async def test_one_client_cannot_withdraw_the_call_of_another() -> None:
    held = Held()
    async with open_server([held.tool]) as server:
        client, other = await server.client(), await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        other.notify("notifications/cancelled", {"requestId": call})
        assert [token.is_set() for token in held.tokens] == [False]
        held.release.set()
        assert (await client.answer(call))["result"]["isError"] is False


async def test_id_of_a_call_under_way_is_refused_and_may_be_used_again_after_its_answer() -> None:
    held = Held()
    async with open_server([held.tool]) as server:
        client = await server.client()
        begin(client, "hold")
        await held.begun.wait()
        client.begin("tools/call", {"name": "hold"}, id=2)
        refusal = (await client.answer(2))["error"]
        held.release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        client.begin("tools/call", {"name": "hold"}, id=2)
        assert await server.runtime.runner.drain(PATIENCE)
        assert refusal["code"] == -32600
        assert [("result" in answer) for answer in answers(client, 2)] == [False, True, True]
        assert len(server.records) == 2
