"""Lines about calls in Python's own log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from dragoman import ToolContext
from dragoman.calls.call_log import call_log
from dragoman.errors import NotFound
from dragoman.parts.part import Contribution, Facilities, Part
from dragoman.testing import open_server
from dragoman.tools.builtin.echo import echo_tool
from dragoman.tools.tool import Handler, Tool, ToolDefinition


async def wait(arguments: dict[str, Any], context: ToolContext) -> None:
    """Ends when it is cancelled."""
    await asyncio.Event().wait()


async def refuse(arguments: dict[str, Any], context: ToolContext) -> None:
    """Raises an error that has been logged."""
    error = NotFound("nothing")
    error.plain = "Nothing here"
    raise error


def made_of(handler: Handler, name: str) -> Tool:
    return Tool(ToolDefinition(name=name, description="", input_schema={"type": "object"}, timeout_ms=20), handler)


async def test_calls_of_a_package_and_of_unknown_tools_have_lines_and_so_have_their_errors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "a.log")

    def build(given: Facilities) -> Contribution:
        given.on_submit.append(call_log(given.catalogue, logging.getLogger("a.log"), __name__.rpartition(".")[0]))
        return Contribution()

    tools = [made_of(wait, "wait"), made_of(refuse, "refuse"), echo_tool()]
    async with open_server(tools, parts=[Part(name="log", build=build)]) as server:
        client = await server.client()
        for name in ("refuse", "echo", "no\nsuch", "wait"):
            await client.call_tool(name, {"message": "hi"} if name == "echo" else {})
    assert [(each.levelname, each.getMessage()) for each in caplog.records if each.name == "a.log"] == [
        ("DEBUG", "Tool call: refuse"),
        ("DEBUG", r"Tool call: no\u000asuch"),
        ("ERROR", r"Tool call error: no\u000asuch - NotFound: Unknown tool: no\u000asuch"),
        ("DEBUG", "Tool call: wait"),
        ("ERROR", "Tool call error: wait - TimedOut: No result within 20 ms"),
    ]
