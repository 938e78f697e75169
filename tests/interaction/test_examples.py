"""The example tools do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli.target import load_tools
from dragoman.testing import open_server

ROOT = Path(__file__).parents[2]
CALLS: dict[str, dict[str, Any]] = {
    "add": {"a": 1, "b": 2},
    "count_down": {"start": 1},
    "count_words": {"text": "one two two"},
    "divide": {"dividend": 1, "divisor": 2},
    "oversleep": {"seconds": 0},
    "paint": {"red": 1, "green": 2, "blue": 3},
    "roll_dice": {},
}


async def test_every_example_tool_answers() -> None:
    tools = load_tools(str(ROOT / "examples/tools.py"))
    assert sorted(tool.definition.name for tool in tools) == sorted(CALLS)
    async with open_server(tools) as server:
        client = await server.client()
        results = {name: await client.call_tool(name, arguments) for name, arguments in CALLS.items()}
    assert {name: result["content"] for name, result in results.items() if result["isError"]} == {}
    assert results["paint"]["content"][0]["type"] == "image"


@pytest.mark.slow
def test_the_conversation_shows_each_call_and_its_record() -> None:
    shown = subprocess.run(
        [sys.executable, "examples/conversation.py"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert shown.returncode == 0, shown.stderr
    for words in ("← 42.0", "INVALID_ARGUMENT", "TIMEOUT", "NOT_FOUND", "late_completed", "progress 1 of 3"):
        assert words in shown.stdout
