"""A thousand tools."""

from __future__ import annotations

from dragoman import Tool, ToolDefinition

TOOLS = [
    Tool(
        ToolDefinition(
            name=f"area{number % 20}/tool-{number:03}",
            description=f"Does the thing with the number {number}.",
            input_schema={"type": "object", "properties": {"text": {"type": "string"}}},
        ),
        lambda arguments, context: arguments,
    )
    for number in range(1000)
]
