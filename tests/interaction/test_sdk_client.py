"""The official SDK's client over every transport, each interaction in both eras of the protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError
from mcp.client.subscriptions import ToolsListChanged

from tests.support.sdk_client import (
    WAYS,
    Way,
    connected,
    error_of,
    every_way,
    handshake_ways,
    modern_ways,
    offered_by,
    spawned,
)
from tests.support.served import TOOLS, tools_under_test

pytestmark = pytest.mark.slow

VERSIONS = {"legacy": "2025-11-25", "auto": "2026-07-28", "2026-07-28": "2026-07-28"}


@pytest.mark.parametrize(
    "way", [*WAYS.values(), Way("stdio", "2026-07-28"), Way("http", "2026-07-28")], ids=lambda way: "-".join(way)
)
async def test_a_client_learns_who_serves_it(way: Way) -> None:
    async with connected(way, tools_under_test) as (client, _):
        assert client.protocol_version == VERSIONS[way.mode]
        await client.list_tools()
        if way.mode != "2026-07-28":  # A client that asks nothing first learns nothing.
            assert client.server_info == types.Implementation(name="dragoman", version="0.1.0")
            assert client.server_capabilities.tools == types.ToolsCapability(list_changed=True)


@every_way
async def test_tools_are_listed_with_their_schemas(way: Way) -> None:
    async with connected(way, tools_under_test) as (client, _):
        listed = await client.list_tools()
        assert listed.next_cursor is None
        tools = {tool.name: tool for tool in listed.tools}
        assert list(tools) == sorted((*(each.name for each in offered_by(tools_under_test)), "health"))
        assert tools["add"].input_schema == {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
        assert tools["echo"].annotations == types.ToolAnnotations(read_only_hint=True)


@every_way
async def test_calls_give_text_blocks_and_the_structure_that_a_schema_promises(way: Way) -> None:
    async with connected(way, tools_under_test) as server:
        await server.client.list_tools()
        result = await server.client.call_tool("add", {"a": 2, "b": 3})
        assert result.structured_content == {"sum": 5}
        assert result.content == [types.TextContent(text='{"sum":5}')]
        assert (await server.client.call_tool("picture", {})).content == [
            types.TextContent(text="a dot"),
            types.ImageContent(data="iVBORw==", mime_type="image/png"),
        ]
        await server.recorded(("add", "success"), ("picture", "success"))


def not_an_integer(path: str) -> dict[str, Any]:
    return {"errors": [{"path": path, "message": 'the value is not of type "integer"'}]}


@every_way
async def test_a_failed_call_is_a_result_that_says_why(way: Way) -> None:
    async with connected(way, tools_under_test) as (client, _):
        for name, arguments, code, details in (
            ("refuse", {}, "NOT_FOUND", {"page": 7}),
            ("fail", {}, "INTERNAL", {"reason": "handler_exception"}),
            ("no-such-tool", {}, "NOT_FOUND", None),
            ("overrun", {}, "TIMEOUT", {"timeoutMs": 50, "setting": "timeouts.tool_overrides.overrun"}),
            ("add", {"a": 1, "b": "x"}, "INVALID_ARGUMENT", not_an_integer("/b")),
            ("count", {"to": "x"}, "INVALID_ARGUMENT", not_an_integer("/to")),
        ):
            error = error_of(await client.call_tool(name, arguments))
            assert (error["code"], error.get("details")) == (code, details)
            assert "secret" not in str(error)


@every_way
async def test_progress_arrives_step_by_step_before_the_result(way: Way) -> None:
    steps: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    async with connected(way, tools_under_test) as (client, _):
        await client.call_tool("count", {"to": 100}, progress_callback=on_progress)
        assert steps == [(step, 100, f"step {step}") for step in range(1, 101)]


@every_way
async def test_many_calls_at_once_each_get_their_own_answer(way: Way) -> None:
    async with connected(way, tools_under_test) as (client, _):
        results = await asyncio.gather(*(client.call_tool("echo", {"message": str(number)}) for number in range(50)))
        assert [result.structured_content for result in results] == [{"message": str(number)} for number in range(50)]


@every_way
async def test_a_client_that_stops_waiting_cancels_the_call(way: Way) -> None:
    async with connected(way, tools_under_test) as server:
        with pytest.raises(MCPError):
            await server.client.call_tool("wait_to_be_cancelled", {}, read_timeout_seconds=0.2)
        assert (await server.client.call_tool("add", {"a": 1, "b": 1})).structured_content == {"sum": 2}
        await server.recorded(("add", "success"), ("wait_to_be_cancelled", "aborted"))


@every_way
async def test_a_task_that_is_cancelled_cancels_its_call(way: Way) -> None:
    under_way = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        under_way.set()

    async with connected(way, tools_under_test) as server:
        waiting = server.client.call_tool("wait_to_be_cancelled", {}, progress_callback=on_progress)
        call = asyncio.create_task(waiting)
        await under_way.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await server.client.call_tool("echo", {"message": "the connection lives on"})
        await server.recorded(("echo", "success"), ("wait_to_be_cancelled", "aborted"))


async def test_a_handshake_client_is_notified_of_new_tools_over_stdio() -> None:
    notified = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            notified.set()

    async with spawned("legacy", (TOOLS,), message_handler=on_message) as (client, _):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["grow", "health"]
        await client.call_tool("grow", {})
        await notified.wait()
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo", "grow", "health"]


async def test_a_modern_client_that_listens_is_told_of_new_tools_over_stdio() -> None:
    async with spawned("auto", (TOOLS,)) as (client, _), client.listen(tools_list_changed=True) as changes:
        assert changes.honored == types.SubscriptionFilter(tools_list_changed=True)
        await client.call_tool("grow", {})
        assert await anext(changes) == ToolsListChanged()
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo", "grow", "health"]


@handshake_ways
async def test_ping_is_answered_in_the_handshake_era(way: Way) -> None:
    async with connected(way, tools_under_test) as (client, _):
        assert await client.session.send_ping() == types.EmptyResult()


@modern_ways
async def test_ping_is_unknown_in_the_modern_era(way: Way) -> None:
    async with connected(way, tools_under_test) as (client, _):
        with pytest.raises(MCPError) as refused:
            await client.session.send_ping()
        assert refused.value.code == types.METHOD_NOT_FOUND


@every_way
async def test_a_method_that_is_not_served_is_refused_and_the_client_can_go_on(way: Way) -> None:
    async with connected(way, tools_under_test) as (client, _):
        with pytest.raises(MCPError) as refused:
            await client.list_prompts()
        assert refused.value.code == types.METHOD_NOT_FOUND
        assert (await client.call_tool("add", {"a": 1, "b": 1})).structured_content == {"sum": 2}
