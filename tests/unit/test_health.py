"""The tool `health`: what it says, when it says that something is wrong, and that it can always say it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dragoman import ToolContext, tool
from dragoman.calls.settings import ResourcesConfig
from dragoman.calls.slots import Slots
from dragoman.errors import ResourceExhausted
from dragoman.testing import ManualClock, MemoryClient, open_server
from dragoman.tools.builtin.echo import echo_tool
from tests.support.answers import error_in
from tests.support.calls import Held, LateClock, begin
from tests.support.waiting import PATIENCE

TOO_LARGE = {"message": "x" * 100}


async def health(client: MemoryClient) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((await client.call_tool("health"))["content"][0]["text"])
    return report


@pytest.mark.requirement("FND-HEALTH-01")
async def test_health_is_always_listed_and_takes_no_arguments() -> None:
    async with open_server() as server:
        client = await server.client()
        (listed,) = await client.list_tools()
        error = error_in(await client.call_tool("health", {"verbose": True}))
        assert (await client.call_tool("health"))["isError"] is False
    assert listed == {
        "name": "health",
        "description": "Reports the server's status, its limits and what is in use.",
        "inputSchema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {},
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    }
    assert error["code"] == "INVALID_ARGUMENT"


@pytest.mark.requirement("FND-HEALTH-02")
async def test_health_reports_identity_limits_and_use() -> None:
    config = {
        "server": {"name": "porter", "version": "9.9"},
        "tools": {"defaultTimeoutMs": 1234, "maxPayloadBytes": 5678, "maxStateBytes": 91},
        "resources": {"maxConcurrentExecutions": 7},
    }
    held = Held()
    async with open_server([held.tool], config, clock=ManualClock()) as server:
        client = await server.client()
        begin(client, "hold")
        await held.begun.wait()
        report = await health(client)
        held.release.set()
    memory = report["resources"].pop("memoryUsageBytes")
    assert report == {
        "server": {"name": "porter", "version": "9.9"},
        "config": {"toolTimeoutMs": 1234, "maxConcurrentExecutions": 7, "maxPayloadBytes": 5678, "maxStateBytes": 91},
        "resources": {"eventLoopDelayMs": 0.0, "concurrentExecutions": 1, "maxConcurrentExecutions": 7},
        "status": "healthy",
    }
    assert memory > 1_000_000


@pytest.mark.requirement("FND-HEALTH-03", "FND-HEALTH-04", "FND-HEALTH-05")
@pytest.mark.parametrize(
    ("taken", "lag_ms", "refusals", "status"),
    [
        (0, 0, 0, "healthy"),
        (8, 100, 2, "healthy"),  # Exactly at each threshold of `degraded`.
        (9, 0, 0, "degraded"),
        (0, 101, 0, "degraded"),
        (9, 500, 2, "degraded"),  # Exactly at each threshold of `unhealthy`.
        (10, 0, 0, "unhealthy"),
        (0, 501, 0, "unhealthy"),
        (0, 0, 3, "unhealthy"),
        (0, 0, 4, "unhealthy"),
        (9, 101, 3, "unhealthy"),  # The worse of the two wins.
        (9, 501, 0, "unhealthy"),
    ],
)
def test_status_is_the_worst_that_any_measure_says(taken: int, lag_ms: int, refusals: int, status: str) -> None:
    clock = LateClock()
    slots = Slots(ResourcesConfig(max_concurrent_executions=10), clock=clock)
    slots.lag.start()
    clock.elapsed += 0.05 + lag_ms / 1000
    for _ in range(taken):
        slots.try_acquire_slot()
    slots.consecutive_refusals = refusals
    assert slots.get_health_status() == status


@pytest.mark.requirement("FND-HEALTH-03", "FND-HEALTH-04", "FND-HEALTH-05")
async def test_health_gets_worse_as_slots_fill_up_and_better_as_they_empty_and_leaves_itself_out() -> None:
    held = [Held(f"hold{number}") for number in range(10)]
    async with open_server([one.tool for one in held], clock=ManualClock()) as server:
        client = await server.client()
        seen = [(await health(client))["status"]]
        for number, one in enumerate(held):
            begin(client, f"hold{number}")
            await one.begun.wait()
            report = await health(client)
            assert report["resources"]["concurrentExecutions"] == number + 1
            seen.append(report["status"])
        assert seen == ["healthy"] * 9 + ["degraded", "unhealthy"]
        for one in held:
            one.release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        report = await health(client)
    assert (report["status"], report["resources"]["concurrentExecutions"]) == ("healthy", 0)


@pytest.mark.requirement("FND-HEALTH-05", "FND-HEALTH-06")
async def test_three_refusals_in_a_row_are_unhealthy_whoever_was_refused_and_two_are_not() -> None:
    async with open_server([echo_tool()], {"tools": {"maxPayloadBytes": 50}}, clock=ManualClock()) as server:
        clients = [await server.client() for _ in range(3)]
        seen = []
        for client in clients:
            await client.call_tool("echo", TOO_LARGE)
            seen.append(server.runtime.slots.get_health_status())
        assert seen == ["healthy", "healthy", "unhealthy"]
        assert (await health(clients[0]))["status"] == "unhealthy"
        assert (await health(clients[0]))["status"] == "healthy"  # The first report was a call that was not refused.


@tool
async def quota() -> None:
    raise ResourceExhausted("the quota is used up")


@pytest.mark.requirement("FND-HEALTH-06")
@pytest.mark.parametrize(
    ("name", "arguments", "left"),
    [
        ("echo", {"message": "hi"}, 0),
        ("echo", {"message": 1}, 0),
        ("nobody", {}, 0),
        ("quota", {}, 0),  # The tool's own words, not the server's.
        ("echo", TOO_LARGE, 3),
    ],
)
async def test_any_call_that_is_not_refused_starts_the_count_anew(
    name: str, arguments: dict[str, Any], left: int
) -> None:
    async with open_server([echo_tool(), quota], {"tools": {"maxPayloadBytes": 50}}) as server:
        client = await server.client()
        for _ in range(2):
            await client.call_tool("echo", TOO_LARGE)
        assert server.runtime.slots.consecutive_refusals == 2
        await client.call_tool(name, arguments)
        assert server.runtime.slots.consecutive_refusals == left


@pytest.mark.requirement("FND-HEALTH-06")
async def test_errors_a_handler_returns_itself_are_not_counted() -> None:
    async with open_server([quota]) as server:
        client = await server.client()
        for _ in range(4):
            assert error_in(await client.call_tool("quota"))["code"] == "RESOURCE_EXHAUSTED"
        assert server.runtime.slots.get_health_status() == "healthy"


@pytest.mark.requirement("FND-HEALTH-06")
async def test_protocol_and_state_errors_leave_the_count_alone() -> None:
    async with open_server([echo_tool()], {"tools": {"maxPayloadBytes": 50}}) as server:
        client = await server.client()
        for _ in range(2):
            await client.call_tool("echo", TOO_LARGE)
        client.send(b"nonsense\n[]\n")
        await client.request("tools/call", {"name": "echo", "arguments": []})
        await client.request("no/such/method")
        await server.connect().request("tools/call", {"name": "echo", "arguments": {"message": "hi"}})
        assert server.runtime.slots.consecutive_refusals == 2


@pytest.mark.requirement("FND-HEALTH-06")
async def test_call_that_ends_after_the_refusals_starts_the_count_anew() -> None:
    held = Held()
    async with open_server([held.tool], {"resources": {"maxConcurrentExecutions": 1}}) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        for _ in range(3):
            await client.call_tool("hold")
        assert server.runtime.slots.consecutive_refusals == 3
        held.release.set()
        await client.answer(call)
        assert await server.runtime.runner.drain(PATIENCE)
        assert server.runtime.slots.consecutive_refusals == 0


async def test_many_requests_for_health_at_once_are_all_answered() -> None:
    held = Held()
    async with open_server([held.tool], {"resources": {"maxConcurrentExecutions": 1}}) as server:
        client = await server.client()
        begin(client, "hold")
        await held.begun.wait()
        calls = [begin(client, "health") for _ in range(20)]
        results = [(await client.answer(call))["result"] for call in calls]
        held.release.set()
    assert [result["isError"] for result in results] == [False] * 20


async def test_handler_may_look_at_health_from_inside_its_own_call() -> None:
    @tool
    async def inspect(context: ToolContext) -> Any:
        return (await server.runtime.call("health")).unwrap()["resources"]["concurrentExecutions"]

    async with open_server([inspect], {"resources": {"maxConcurrentExecutions": 1}}) as server:
        async with asyncio.timeout(PATIENCE):
            result = await (await server.client()).call_tool("inspect")
    assert result["content"] == [{"type": "text", "text": "1"}]
