"""The apcore bridge: any apcore registry becomes an MCP server, or tools for OpenAI.

    from apcore_mcp import serve, to_openai_tools

    serve(registry)
    tools = to_openai_tools(registry)

It only adapts: connections, limits, deadlines, logs and the explorer are Dragoman's. Names are loaded when they are
first used, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dragoman.version import __version__ as __version__

if TYPE_CHECKING:
    from apcore_mcp.helpers import MCP_ELICIT_KEY, MCP_PROGRESS_KEY, elicit, report_progress
    from apcore_mcp.server.extensions import load_extensions
    from apcore_mcp.server.serve import attach, serve

_HOMES = {
    "MCP_ELICIT_KEY": "apcore_mcp.helpers",
    "MCP_PROGRESS_KEY": "apcore_mcp.helpers",
    "attach": "apcore_mcp.server.serve",
    "call_openai_tool": "apcore_mcp.converters.openai",
    "elicit": "apcore_mcp.helpers",
    "load_extensions": "apcore_mcp.server.extensions",
    "report_progress": "apcore_mcp.helpers",
    "serve": "apcore_mcp.server.serve",
    "to_openai_tools": "apcore_mcp.converters.openai",
}
__all__ = [
    "MCP_ELICIT_KEY",
    "MCP_PROGRESS_KEY",
    "__version__",
    "attach",
    "call_openai_tool",
    "elicit",
    "load_extensions",
    "report_progress",
    "serve",
    "to_openai_tools",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'apcore_mcp' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
