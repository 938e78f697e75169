"""The official SDK's low-level server with the same tools."""

import anyio
import anyio.lowlevel
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

EMPTY = {"type": "object", "properties": {}}


async def list_tools(context, params):
    return types.ListToolsResult(tools=[types.Tool(name=name, inputSchema=EMPTY) for name in ("noop", "once", "sync")])


async def call_tool(context, params):
    if params.name == "once":
        await anyio.lowlevel.checkpoint()
    elif params.name == "sync":
        await anyio.to_thread.run_sync(lambda: None)
    return types.CallToolResult(content=[types.TextContent(type="text", text="null")])


async def main() -> None:
    server = Server("sdk", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main)
