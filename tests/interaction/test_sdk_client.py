"""The official SDK's client against a spawned server, each interaction in both eras of the protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError
from mcp.client.subscriptions import ToolsListChanged

from tests.support.sdk_client import Log, both_eras, connected, error_of
from tests.support.served import TOOLS

pytestmark = pytest.mark.slow

VERSIONS = {"legacy": "2025-11-25", "auto": "2026-07-28", "2026-07-28": "2026-07-28"}


@pytest.mark.parametrize("mode", VERSIONS)
async def test_a_client_learns_who_serves_it(mode: str, log: Log) -> None:
    async with connected(mode, log) as client:
        assert client.protocol_version == VERSIONS[mode]
        await client.list_tools()
        if mode != "2026-07-28":  # A client that asks nothing first learns nothing.
            assert client.server_info == types.Implementation(name="dragoman", version="0.1.0")
            assert client.server_capabilities.tools == types.ToolsCapability(list_changed=True)


@both_eras
async def test_tools_are_listed_with_their_schemas(mode: str, log: Log) -> None:
    async with connected(mode, log) as client:
        listed = await client.list_tools()
        assert listed.next_cursor is None
        tools = {tool.name: tool for tool in listed.tools}
        assert list(tools) == sorted(tools)
        assert tools["add"].input_schema == {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
        assert tools["echo"].annotations == types.ToolAnnotations(read_only_hint=True)


@both_eras
async def test_a_call_gives_text_and_the_structure_that_its_schema_promises(mode: str, log: Log) -> None:
    async with connected(mode, log) as client:
        await client.list_tools()
        result = await client.call_tool("add", {"a": 2, "b": 3})
        assert result.structured_content == {"sum": 5}
        assert result.content == [types.TextContent(text='{"sum":5}')]
    assert log.records() == [("add", "success")]


@both_eras
async def test_content_blocks_arrive_as_they_were_returned(mode: str, log: Log) -> None:
    async with connected(mode, log) as client:
        result = await client.call_tool("picture", {})
        assert result.content == [
            types.TextContent(text="a dot"),
            types.ImageContent(data="iVBORw==", mime_type="image/png"),
        ]


@both_eras
@pytest.mark.parametrize(
    ("name", "arguments", "code", "details"),
    [
        ("refuse", {}, "NOT_FOUND", {"page": 7}),
        ("fail", {}, "INTERNAL", {"reason": "handler_exception"}),
        ("no-such-tool", {}, "NOT_FOUND", None),
        ("overrun", {}, "TIMEOUT", {"timeoutMs": 50}),
        (
            "add",
            {"a": 1, "b": "x"},
            "INVALID_ARGUMENT",
            {"errors": [{"path": "/b", "message": 'the value is not of type "integer"'}]},
        ),
    ],
)
async def test_a_failed_call_is_a_result_that_says_why(
    mode: str, log: Log, name: str, arguments: dict[str, Any], code: str, details: dict[str, Any] | None
) -> None:
    async with connected(mode, log) as client:
        error = error_of(await client.call_tool(name, arguments))
        assert (error["code"], error.get("details")) == (code, details)
        assert "secret" not in str(error)


@both_eras
async def test_progress_arrives_step_by_step_before_the_result(mode: str, log: Log) -> None:
    steps: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    async with connected(mode, log) as client:
        await client.call_tool("count", {"to": 5}, progress_callback=on_progress)
        assert steps == [(step, 5, f"step {step}") for step in range(1, 6)]


@both_eras
async def test_many_calls_at_once_each_get_their_own_answer(mode: str, log: Log) -> None:
    async with connected(mode, log) as client:
        results = await asyncio.gather(*(client.call_tool("echo", {"message": str(number)}) for number in range(50)))
        assert [result.structured_content for result in results] == [{"message": str(number)} for number in range(50)]


@both_eras
async def test_a_client_that_stops_waiting_cancels_the_call(mode: str, log: Log) -> None:
    async with connected(mode, log) as client:
        with pytest.raises(MCPError):
            await client.call_tool("wait_to_be_cancelled", {}, read_timeout_seconds=0.2)
        assert (await client.call_tool("add", {"a": 1, "b": 1})).structured_content == {"sum": 2}
    assert sorted(log.records()) == [("add", "success"), ("wait_to_be_cancelled", "aborted")]


@both_eras
async def test_a_task_that_is_cancelled_cancels_its_call(mode: str, log: Log) -> None:
    under_way = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        under_way.set()

    async with connected(mode, log) as client:
        call = asyncio.create_task(client.call_tool("wait_to_be_cancelled", {}, progress_callback=on_progress))
        await under_way.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await client.call_tool("echo", {"message": "the connection lives on"})
    assert sorted(log.records()) == [("echo", "success"), ("wait_to_be_cancelled", "aborted")]


async def test_a_handshake_client_is_notified_of_new_tools(log: Log) -> None:
    notified = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            notified.set()

    async with connected("legacy", log, (TOOLS,), message_handler=on_message) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["grow", "health"]
        await client.call_tool("grow", {})
        await notified.wait()
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo", "grow", "health"]


async def test_a_modern_client_that_listens_is_told_of_new_tools(log: Log) -> None:
    async with connected("auto", log, (TOOLS,)) as client, client.listen(tools_list_changed=True) as changes:
        assert changes.honored == types.SubscriptionFilter(tools_list_changed=True)
        await client.call_tool("grow", {})
        assert await anext(changes) == ToolsListChanged()
        assert [tool.name for tool in (await client.list_tools()).tools] == ["echo", "grow", "health"]


async def test_ping_is_answered_in_the_handshake_era_and_unknown_in_the_modern_one(log: Log) -> None:
    async with connected("legacy", log) as client:
        assert await client.session.send_ping() == types.EmptyResult()
    async with connected("auto", log) as client:
        with pytest.raises(MCPError) as refused:
            await client.session.send_ping()
        assert refused.value.code == types.METHOD_NOT_FOUND


@both_eras
async def test_a_method_that_is_not_served_is_refused_and_the_connection_lives_on(mode: str, log: Log) -> None:
    async with connected(mode, log) as client:
        with pytest.raises(MCPError) as refused:
            await client.list_prompts()
        assert refused.value.code == types.METHOD_NOT_FOUND
        assert (await client.call_tool("add", {"a": 1, "b": 1})).structured_content == {"sum": 2}
