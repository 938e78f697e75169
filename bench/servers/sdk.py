"""The official SDK's low-level server with the same tools."""

import asyncio
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
TEXT: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "array", "items": {"type": "string"}}},
    "required": ["text"],
}
SCHEMAS = {"noop": NOTHING, "once": NOTHING, "sync": NOTHING, "take": TEXT}


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=SCHEMAS[name]) for name in SCHEMAS])


async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    if params.name == "once":
        await asyncio.sleep(0)
    elif params.name == "sync":
        await anyio.to_thread.run_sync(lambda: None)
    return types.CallToolResult(content=[types.TextContent(type="text", text="null")])


async def main() -> None:
    server = Server("sdk", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
