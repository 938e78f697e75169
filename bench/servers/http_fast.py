"""FastMCP over HTTP with the same tool."""

from fastmcp import FastMCP
from serving import serve

server = FastMCP("fast")


@server.tool
async def noop() -> None:
    """Does nothing."""


serve(server.http_app())
