"""Dragoman: a governed MCP runtime.

    from dragoman import tool, ToolContext

    @tool
    def add(a: int, b: int) -> int:
        "Adds two numbers."
        return a + b

Names are loaded when they are first used, so that importing this package costs nothing.
"""

from __future__ import annotations

from dragoman.version import __version__ as __version__

TYPE_CHECKING = False  # Type checkers take it for the one in `typing`, whose import would be the dearest of all here.
if TYPE_CHECKING:
    from dragoman.access.callers import Caller
    from dragoman.agents.agent import Agent, agent
    from dragoman.agents.context import AgentContext
    from dragoman.agents.coordinator import Coordinator
    from dragoman.agents.message import AgentMessage
    from dragoman.app import ServerOptions, create_server, http_app, start_http_server
    from dragoman.app import open_runtime as open
    from dragoman.calls.call import Call, Outcome, Stage
    from dragoman.config import Config
    from dragoman.edge.stdio import start_server
    from dragoman.findings import Finding
    from dragoman.offers.catalogue import Offers
    from dragoman.offers.prompt import Message, Prompt, prompt
    from dragoman.offers.resource import Resource, resource
    from dragoman.openai import call_openai_tool, openai_tools
    from dragoman.parts.part import Command, Contribution, Facilities, Loop, Part, ScheduledJob
    from dragoman.parts.route import HttpRequest, HttpResponse, Route
    from dragoman.runtime import Runtime
    from dragoman.schemas.forms import choices
    from dragoman.sections import Section
    from dragoman.telemetry.figures import Gauge
    from dragoman.tools.content import (
        Audio,
        BlobResource,
        EmbeddedResource,
        Image,
        ResourceLink,
        Text,
        TextResource,
    )
    from dragoman.tools.context import Cancellation, ToolContext, raise_if_cancelled
    from dragoman.tools.questions import Ask, Root, Roots, Sample
    from dragoman.tools.tool import Tool, ToolDefinition, define_tool, tool

_HOMES = {
    "Agent": "dragoman.agents.agent",
    "AgentContext": "dragoman.agents.context",
    "AgentMessage": "dragoman.agents.message",
    "Ask": "dragoman.tools.questions",
    "Audio": "dragoman.tools.content",
    "BlobResource": "dragoman.tools.content",
    "Call": "dragoman.calls.call",
    "Caller": "dragoman.access.callers",
    "Cancellation": "dragoman.tools.context",
    "Command": "dragoman.parts.part",
    "Config": "dragoman.config",
    "Contribution": "dragoman.parts.part",
    "Coordinator": "dragoman.agents.coordinator",
    "EmbeddedResource": "dragoman.tools.content",
    "Facilities": "dragoman.parts.part",
    "Finding": "dragoman.findings",
    "Gauge": "dragoman.telemetry.figures",
    "HttpRequest": "dragoman.parts.route",
    "HttpResponse": "dragoman.parts.route",
    "Image": "dragoman.tools.content",
    "Loop": "dragoman.parts.part",
    "Message": "dragoman.offers.prompt",
    "Offers": "dragoman.offers.catalogue",
    "Outcome": "dragoman.calls.call",
    "Part": "dragoman.parts.part",
    "Prompt": "dragoman.offers.prompt",
    "Resource": "dragoman.offers.resource",
    "ResourceLink": "dragoman.tools.content",
    "Root": "dragoman.tools.questions",
    "Roots": "dragoman.tools.questions",
    "Route": "dragoman.parts.route",
    "Runtime": "dragoman.runtime",
    "Sample": "dragoman.tools.questions",
    "ScheduledJob": "dragoman.parts.part",
    "Section": "dragoman.sections",
    "ServerOptions": "dragoman.app",
    "Stage": "dragoman.calls.call",
    "Text": "dragoman.tools.content",
    "TextResource": "dragoman.tools.content",
    "Tool": "dragoman.tools.tool",
    "ToolContext": "dragoman.tools.context",
    "ToolDefinition": "dragoman.tools.tool",
    "agent": "dragoman.agents.agent",
    "call_openai_tool": "dragoman.openai",
    "choices": "dragoman.schemas.forms",
    "create_server": "dragoman.app",
    "define_tool": "dragoman.tools.tool",
    "http_app": "dragoman.app",
    "open": "dragoman.app",
    "openai_tools": "dragoman.openai",
    "prompt": "dragoman.offers.prompt",
    "raise_if_cancelled": "dragoman.tools.context",
    "resource": "dragoman.offers.resource",
    "start_http_server": "dragoman.app",
    "start_server": "dragoman.edge.stdio",
    "tool": "dragoman.tools.tool",
}
__all__ = [
    "Agent",
    "AgentContext",
    "AgentMessage",
    "Ask",
    "Audio",
    "BlobResource",
    "Call",
    "Caller",
    "Cancellation",
    "Command",
    "Config",
    "Contribution",
    "Coordinator",
    "EmbeddedResource",
    "Facilities",
    "Finding",
    "Gauge",
    "HttpRequest",
    "HttpResponse",
    "Image",
    "Loop",
    "Message",
    "Offers",
    "Outcome",
    "Part",
    "Prompt",
    "Resource",
    "ResourceLink",
    "Root",
    "Roots",
    "Route",
    "Runtime",
    "Sample",
    "ScheduledJob",
    "Section",
    "ServerOptions",
    "Stage",
    "Text",
    "TextResource",
    "Tool",
    "ToolContext",
    "ToolDefinition",
    "agent",
    "call_openai_tool",
    "choices",
    "create_server",
    "define_tool",
    "http_app",
    "open",
    "openai_tools",
    "prompt",
    "raise_if_cancelled",
    "resource",
    "start_http_server",
    "start_server",
    "tool",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), "open_runtime" if name == "open" else name)
    globals()[name] = value
    return value
