"""The official SDK's client of a server that it starts, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import msgspec
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.support.processes import environment
from tests.support.served import TOOLS
from tests.support.waiting import PATIENCE

SERVE = ("-m", "dragoman", "serve", TOOLS)


both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"], ids=["handshake", "modern"])


class Log:
    """Where a server's stderr goes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def records(self) -> list[tuple[str, str]]:
        """Tool and outcome of every completion record; each line is checked to be JSON."""
        entries = [msgspec.json.decode(each) for each in self.path.read_bytes().splitlines()]
        return [(each["toolName"], each["outcome"]) for each in entries if each["message"] == "tool call completed"]


@asynccontextmanager
async def connected(mode: str, log: Log, arguments: tuple[str, ...] = SERVE, **options: Any) -> AsyncIterator[Client]:
    """A client of a server of its own; everything in the block happens in time or fails."""
    server = StdioServerParameters(command=sys.executable, args=list(arguments), env=environment())
    with log.path.open("w") as errlog:
        async with asyncio.timeout(PATIENCE), Client(stdio_client(server, errlog), mode=mode, **options) as client:
            yield client


def error_of(result: types.CallToolResult) -> dict[str, Any]:
    assert result.is_error
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    error: dict[str, Any] = msgspec.json.decode(block.text)
    return error
