"""The official SDK's client, which checks structured content against the output schema, reads every kind of result."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from tests.support.sdk_client import Way, connected, every_way
from tests.support.served import result_tools
from tests.support.worker_processes import served

pytestmark = pytest.mark.slow

WRITTEN = "2024-01-15T10:30:00Z"
RESULTS: dict[str, tuple[str, Any]] = {
    "text": ('He said "no"', {"result": 'He said "no"'}),
    "nothing": ("null", {"result": None}),
    "number": ("1.5", {"result": 1.5}),
    "choice": ("null", {"result": None}),
    "items": (f'[{{"name":"a","bought":"{WRITTEN}"}}]', {"result": [{"name": "a", "bought": WRITTEN}]}),
    "point": ('{"x":1,"y":2}', {"x": 1, "y": 2}),
    "places": (f'{{"file":"a","when":"{WRITTEN}"}}', {"file": "a", "when": WRITTEN}),
}


async def check(client: Client) -> None:
    listed = {each.name: each for each in (await client.list_tools()).tools}
    assert listed["picture"].output_schema is None
    for name, expected in RESULTS.items():
        assert listed[name].output_schema is not None
        for _ in range(2):
            result = await client.call_tool(name, {})
            (block,) = result.content
            assert isinstance(block, types.TextContent)
            assert (result.is_error, block.text, result.structured_content) == (False, *expected)
    assert (await client.call_tool("picture", {})).content[0].type == "image"
    assert (await client.call_tool("untrue", {})).is_error


@every_way
async def test_every_kind_of_result_is_read(way: Way) -> None:
    async with connected(way, result_tools) as (client, _):
        await check(client)


async def test_every_kind_of_result_is_read_from_workers() -> None:
    with served(result_tools.__file__) as server:
        for mode in ("legacy", "auto"):
            async with Client(f"http://127.0.0.1:{server.port}/mcp", mode=mode) as client:
                await check(client)
