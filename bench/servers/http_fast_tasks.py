"""FastMCP over HTTP with the same tool as a task, which its tasks package keeps in memory."""

from fastmcp import FastMCP
from fastmcp_tasks import TasksExtension
from serving import serve

server = FastMCP("fast")
server.add_extension(TasksExtension(url="memory://", concurrency=64))


@server.tool(task=True)
async def noop() -> None:
    """Does nothing."""


serve(server.http_app())
