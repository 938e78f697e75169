"""Says how the server is doing, in a slot of its own, so that a full server can say that it is full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dragoman.tools.context import ToolContext
from dragoman.tools.tool import Handler, Hints, Tool, ToolDefinition

HEALTH_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def health_handler(report: Callable[[], dict[str, Any]]) -> Handler:
    """Answers what `report` gives."""

    async def health(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        return report()

    return health


def health_tool(report: Callable[[], dict[str, Any]]) -> Tool:
    """The tool `health`; `report` gives what it answers."""
    return Tool(
        ToolDefinition(
            name="health",
            description="Reports the server's status, its limits and what is in use.",
            input_schema=HEALTH_SCHEMA,
            hints=Hints(read_only=True, idempotent=True, open_world=False),
        ),
        health_handler(report),
        is_reserved=True,
        wants_context=False,
    )
