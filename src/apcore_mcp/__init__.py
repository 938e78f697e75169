"""The apcore bridge: any apcore registry becomes an MCP server, or tools for OpenAI.

    from apcore_mcp import serve, to_openai_tools

    serve(registry)
    tools = to_openai_tools(registry)

It only adapts: connections, limits, deadlines, logs and the explorer are Dragoman's. Names are loaded when they are
first used, so that importing this package costs nothing.
"""

from __future__ import annotations

from typing import Any

from dragoman.version import __version__ as __version__

_HOMES = {
    "call_openai_tool": "apcore_mcp.converters.openai",
    "serve": "apcore_mcp.server.serve",
    "to_openai_tools": "apcore_mcp.converters.openai",
}
__all__ = ["__version__", "call_openai_tool", "serve", "to_openai_tools"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'apcore_mcp' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
