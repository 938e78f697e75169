"""What an answer to a call holds: the value that a tool returned, or the error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tests.support.http_wire import Response


def value_in(result: Mapping[str, Any]) -> Any:
    """What a tool returned: its structured content, or else the JSON of its text."""
    content = result.get("structuredContent", {})
    return content["result"] if content.keys() == {"result"} else msgspec.json.decode(result["content"][0]["text"])


def text_in(response: Response) -> Any:
    """What a tool returned."""
    result = response.message["result"]
    assert result["isError"] is False, result
    return value_in(result)


def error_in(result: Mapping[str, Any]) -> dict[str, Any]:
    """The StructuredError that a `tools/call` result carries."""
    assert result["isError"] is True, result
    (block,) = result["content"]
    error: dict[str, Any] = msgspec.json.decode(block["text"])
    return error
