"""Gives the next part of a result that was too long for one answer."""

from __future__ import annotations

from typing import Any

from dragoman.artifacts import CURSOR_PATTERN, Artifacts, Position
from dragoman.config import ResponseConfig
from dragoman.tools.context import ToolContext
from dragoman.tools.pages import ANSWER_FRAME, ListResponse, TextResponse, weight_in_answer
from dragoman.tools.tool import Hints, Tool, ToolDefinition

NAME = "result_continue"
INPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"cursor": {"type": "string", "description": "From a truncated result, or from the part before."}},
    "required": ["cursor"],
    "additionalProperties": False,
}
OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "description": "Of a list: the items of this part."},
        "limit": {"type": "integer", "minimum": 1, "description": "Of a list: the most items of a part."},
        "text": {"type": "string", "description": "Of a string: the characters of this part."},
        "total": {"type": "integer", "minimum": 0, "description": "How many items or characters there are."},
        "offset": {"type": "integer", "minimum": 0, "description": "How many of them come before this part."},
        "hasMore": {"type": "boolean", "description": "Whether some come after it."},
        # With the pattern, a cursor that was itself shortened would not pass for one.
        "nextCursor": {"type": "string", "pattern": CURSOR_PATTERN, "description": "Where the next part begins."},
    },
    "required": ["total", "offset", "hasMore"],
    "oneOf": [{"required": ["items", "limit"]}, {"required": ["text"]}],
}


def result_continue_tool(artifacts: Artifacts, config: ResponseConfig) -> Tool:
    """The tool `result_continue`; each part fits into an answer by itself, unless a single item does not."""
    room = max(1, config.max_response_bytes - ANSWER_FRAME)

    async def result_continue(arguments: dict[str, Any], context: ToolContext) -> ListResponse | TextResponse:
        position = artifacts.find(context.caller, arguments["cursor"])
        part = _part(position, config, room)
        if part.has_more:
            taken = len(part.items if isinstance(part, ListResponse) else part.text)
            part.next_cursor = position.cursor_at(part.offset + taken)
        return part

    return Tool(
        ToolDefinition(
            name=NAME,
            description="Gives the next part of a list or a text that was truncated in an earlier result.",
            input_schema=INPUT_SCHEMA,
            output_schema=OUTPUT_SCHEMA,
            category="query",
            hints=Hints(read_only=True, idempotent=True, open_world=False),
        ),
        result_continue,
    )


def _part(position: Position, config: ResponseConfig, room: int) -> ListResponse | TextResponse:
    whole, offset = position.value, position.offset
    if position.kind == "list":
        most = config.max_list_items
        items = _items_within(whole[offset : offset + most], room)
        return ListResponse(items=items, total=len(whole), limit=most, offset=offset)
    text = whole[offset : offset + config.max_string_length]
    while len(text) > 1 and weight_in_answer(text) > room:
        text = text[: len(text) // 2]
    return TextResponse(text=text, total=len(whole), offset=offset)


def _items_within(items: list[Any], room: int) -> list[Any]:
    """As many as fit, and at least one: it is then shortened as any result is that is too large."""
    for taken, item in enumerate(items):
        room -= weight_in_answer(item) + 2
        if room < 0:
            return items[: max(1, taken)]
    return items
