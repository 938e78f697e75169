"""The official SDK's server over HTTP with the same tool; `json` before the port makes it answer with JSON alone."""

import sys

from mcp.server import MCPServer
from serving import serve

server = MCPServer("sdk", version="1", log_level="WARNING")  # By default each session is a line in colour, which costs.


@server.tool(structured_output=False)  # As the others do; with it each answer would be validated too.
async def noop() -> None:
    """Does nothing."""


serve(server.streamable_http_app(json_response="json" in sys.argv))
