"""Gives the next part of a result that was too long for one answer."""

from __future__ import annotations

from itertools import islice
from typing import Any

from dragoman.errors import NotFound
from dragoman.replies.artifacts import CURSOR_PATTERN, NOTHING_THERE, Artifacts, Position
from dragoman.replies.settings import ResponseConfig
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
        if position.source.kind == "list":
            return _items(position, config.max_list_items, room)
        return _text(position, config.max_string_length, room)

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


def _items(position: Position, most: int, room: int) -> ListResponse:
    """As many as fit, and at least one: it is then shortened as any result is that is too large."""
    items: list[Any] = []
    cursor = ""
    try:
        for item, behind in islice(position.items(), most):
            room -= weight_in_answer(item) + 2
            if room < 0 and items:
                break
            items.append(item)
            cursor = behind
    except ValueError:  # No item begins there: the cursor is not one of ours.
        raise NotFound(NOTHING_THERE) from None
    part = ListResponse(items=items, total=position.source.total, limit=most, offset=position.offset)
    if part.has_more:
        part.next_cursor = cursor
    return part


def _text(position: Position, most: int, room: int) -> TextResponse:
    whole, offset = position.source.text, position.offset
    text = whole[offset : offset + most]
    while len(text) > 1 and weight_in_answer(text) > room:
        text = text[: len(text) // 2]
    part = TextResponse(text=text, total=len(whole), offset=offset)
    if part.has_more:
        part.next_cursor = position.cursor_at(offset + len(text))
    return part
