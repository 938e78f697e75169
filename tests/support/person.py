"""A person and a model behind the official SDK's client, who answer what they are asked."""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp import Client


class Person:
    """Answers what it is asked with what it was given, in order, and remembers the questions."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []
        self.forms: list[Any] = []

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult | types.ErrorData:
        self.asked.append(params.message)
        self.forms.append(params.requested_schema)
        answer = self._answers.pop(0)
        if isinstance(answer, dict):
            return types.ElicitResult(action="accept", content=answer)
        return types.ElicitResult(action=answer) if isinstance(answer, str) else answer

    async def sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        self.asked.append(params.messages[0].content.text)
        return types.CreateMessageResult(
            role="assistant", content=types.TextContent(text="Paris"), model="m", stop_reason="endTurn"
        )

    async def roots(self, context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///work")])

    def callbacks(self) -> dict[str, Any]:
        return {
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "list_roots_callback": self.roots,
        }


async def text_of(client: Client, name: str, arguments: dict[str, Any] | None = None) -> Any:
    result = await client.call_tool(name, arguments or {})
    assert not result.is_error, result
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text
