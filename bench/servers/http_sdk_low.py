"""The official SDK's low-level server over HTTP, stateless and with answers as JSON alone: its cheapest way."""

from mcp.server.lowlevel import Server
from sdk import call_tool, list_tools
from serving import serve

server = Server("sdk", version="1", on_list_tools=list_tools, on_call_tool=call_tool)

serve(server.streamable_http_app(stateless_http=True, json_response=True))
