"""A wire that ends in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from dragoman.edge.connection import TransportType


class MemoryWire:
    """Keeps what was sent, in order."""

    def __init__(self, kind: TransportType = "stdio") -> None:
        self.type: TransportType = kind
        self.lines: list[bytes] = []
        self.is_full = False
        self._arrived = asyncio.Event()

    def send(self, line: bytes, *, more: bool) -> None:
        self.lines.append(line)
        self._arrived.set()

    def flush(self) -> None:
        """Everything has arrived already."""

    async def wait(self) -> None:
        """Return when something has been sent since the last time."""
        await self._arrived.wait()
        self._arrived.clear()


def is_json_rpc(message: Any) -> bool:
    """Whether `message` is a JSON-RPC 2.0 message that a server may send."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return False
    if "method" in message:
        return isinstance(message["method"], str)
    if "id" not in message or ("result" in message) == ("error" in message):
        return False
    if "error" in message:
        error = message["error"]
        return isinstance(error, dict) and isinstance(error.get("code"), int) and isinstance(error.get("message"), str)
    return isinstance(message["result"], dict)


def decode(line: bytes) -> dict[str, Any]:
    """A line as the message it holds."""
    message = msgspec.json.decode(line)
    assert isinstance(message, dict)
    return message
