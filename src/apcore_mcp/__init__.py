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
    from apcore_mcp.converters.openai import call_openai_tool as call_openai_tool
    from apcore_mcp.converters.openai import to_openai_tools as to_openai_tools
    from apcore_mcp.helpers import MCP_ELICIT_KEY as MCP_ELICIT_KEY
    from apcore_mcp.helpers import MCP_PROGRESS_KEY as MCP_PROGRESS_KEY
    from apcore_mcp.helpers import elicit as elicit
    from apcore_mcp.helpers import report_progress as report_progress
    from apcore_mcp.server.extensions import load_extensions as load_extensions
    from apcore_mcp.server.serve import app as app
    from apcore_mcp.server.serve import async_serve as async_serve
    from apcore_mcp.server.serve import attach as attach
    from apcore_mcp.server.serve import modules_part as modules_part
    from apcore_mcp.server.serve import serve as serve

_HOMES = {
    "helpers": ("MCP_ELICIT_KEY", "MCP_PROGRESS_KEY", "elicit", "report_progress"),
    "converters.openai": ("call_openai_tool", "to_openai_tools"),
    "server.extensions": ("load_extensions",),
    "server.serve": ("app", "async_serve", "attach", "modules_part", "serve"),
}
_HOME_OF = {name: f"apcore_mcp.{home}" for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'apcore_mcp' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
