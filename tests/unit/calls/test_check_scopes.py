"""What a caller was not granted it cannot call, and does not see."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman import tool
from dragoman.access.callers import LOCAL, Caller
from dragoman.testing import ManualClock, MemoryClient, SequentialIds, TestServer, open_server

ran: list[str] = []


@tool
def read(n: int = 0) -> int:
    """Reads."""
    ran.append("read")
    return n


@tool
def write() -> None:
    """Writes."""
    ran.append("write")


def granted(*scopes: str) -> Caller:
    return Caller("ada", scopes=frozenset(scopes))


def serving(**config: Any) -> Any:
    ran.clear()
    return open_server([read, write], config, clock=ManualClock(), ids=SequentialIds())


def error_in(result: dict[str, Any]) -> dict[str, Any]:
    assert result["isError"]
    error: dict[str, Any] = json.loads(result["content"][0]["text"])
    return error


async def test_a_call_without_its_scope_is_refused_by_name_and_nothing_runs() -> None:
    async with serving() as server:
        client = await server.client(granted("tool:read", "openid"))
        assert not (await client.call_tool("read")).get("isError")
        error = error_in(await client.call_tool("write"))
    assert error == {
        "code": "UNAUTHORIZED",
        "message": "The scope tool:write is needed",
        "details": {"reason": "insufficient_scope", "scope": "tool:write", "retryable": False},
        "runId": error["runId"],
        "correlationId": error["correlationId"],
    }
    assert ran == ["read"]
    assert [(record["toolName"], record["outcome"]) for record in server.records] == [
        ("read", "success"),
        ("write", "tool_error"),
    ]


async def test_a_call_is_refused_before_it_takes_a_slot_or_counts_against_a_rate() -> None:
    async with serving(limits={"callsPerMinutePerCaller": 1}, resources={"maxConcurrentExecutions": 1}) as server:
        client = await server.client(granted("tool:read"))
        for _ in range(3):
            assert error_in(await client.call_tool("write"))["code"] == "UNAUTHORIZED"
        assert server.runtime.slots.in_use == 0
        assert not (await client.call_tool("read")).get("isError")


async def test_an_unknown_tool_is_unknown_whatever_the_scopes() -> None:
    async with serving() as server:
        client = await server.client(granted())
        assert error_in(await client.call_tool("nonsense"))["code"] == "NOT_FOUND"


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize(
    "caller",
    [LOCAL, granted(), granted("tool:read"), granted("tool:*"), granted("tool:r*", "tool:w*"), granted("tool:health")],
)
async def test_what_is_listed_is_exactly_what_can_be_called(caller: Caller, modern: bool) -> None:
    async with serving() as server:
        client = server.connect(modern=modern, caller=caller)
        if not modern:
            await client.handshake()
        assert await names_listed(client) == await names_callable(server, client)


async def names_listed(client: MemoryClient) -> list[str]:
    return [listed["name"] for listed in await client.list_tools()]


async def names_callable(server: TestServer, client: MemoryClient) -> list[str]:
    everything = [registered.definition.name for registered in server.runtime.catalogue]
    return [name for name in everything if not (await client.call_tool(name)).get("isError")]


async def test_the_runtime_itself_knows_no_other_way_in() -> None:
    async with serving() as server:
        outcome = await server.runtime.call("write", caller=granted("tool:read"))
        assert str(outcome.error) == "The scope tool:write is needed"
        assert ran == []
