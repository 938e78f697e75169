"""Says back what it was told: the tool to try a connection with."""

from __future__ import annotations

from typing import Any

from dragoman.tools.context import ToolContext
from dragoman.tools.tool import Hints, Tool, ToolDefinition

ECHO_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"message": {"type": "string"}},
    "required": ["message"],
}


async def echo(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    """The handler of `echo`."""
    return {"message": arguments["message"]}


def echo_tool() -> Tool:
    """The tool `echo`."""
    return Tool(
        ToolDefinition(
            name="echo",
            description="Returns the message it was given.",
            input_schema=ECHO_SCHEMA,
            hints=Hints(read_only=True, idempotent=True, open_world=False),
        ),
        echo,
        wants_context=False,
    )
