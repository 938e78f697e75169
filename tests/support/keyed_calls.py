"""Calls with an idempotency key, and a tool that counts how often it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from dragoman import ToolContext, tool
from dragoman.calls.repeats import IDEMPOTENCY_KEY
from dragoman.testing import ManualClock, MemoryClient, TestServer, open_server

KEY = "key-of-16-letter"


def with_key(key: Any = KEY) -> dict[str, Any]:
    """The `_meta` of a call."""
    return {IDEMPOTENCY_KEY: key}


class Effect:
    """A tool whose effect can be counted. It returns, or raises, what it is told, once its gate is open."""

    def __init__(self, name: str = "pay", **hints: Any) -> None:
        self.count = 0
        self.tokens: list[Any] = []
        self.outcome: Any = None
        self.is_patient = True
        """Whether it stops for nothing but its gate."""
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.tool = tool(name=name, **hints)(self._run)

    async def _run(self, ctx: ToolContext, amount: int = 1) -> Any:
        self.count += 1
        number = self.count
        self.tokens.append(ctx.cancellation)
        self.begun.set()
        if self.is_patient:
            await self.gate.wait()
        else:
            await ctx.cancellation.wait()
            ctx.cancellation.raise_if_set()
        self.ended.set()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return {"amount": amount, "number": number} if self.outcome is None else self.outcome


class Kept:
    """How the servers of a test keep their runs: in memory, or in a folder."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def settings(self, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {**({} if self.folder is None else {"storage": {"data_dir": str(self.folder)}}), **(more or {})}

    @asynccontextmanager
    async def serve(
        self, *tools: Any, config: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[TestServer]:
        """A server, on a clock that stands still unless another is given."""
        options = {"clock": ManualClock(), **options}
        async with open_server(tools, self.settings(config), **options) as server:
            yield server


async def call(client: MemoryClient, name: str = "pay", key: Any = KEY, **arguments: Any) -> dict[str, Any]:
    """The result of a call with a key, or its JSON-RPC error."""
    return await client.call_tool(name, arguments, with_key(key))


def begin_keyed(client: MemoryClient, name: str = "pay", key: Any = KEY, **arguments: Any) -> int | str:
    """Send a call with a key without waiting for its answer."""
    return client.begin("tools/call", {"name": name, "arguments": arguments, "_meta": with_key(key)})


def is_repeat(result: Mapping[str, Any]) -> bool:
    """Whether a result says that it is that of an earlier call."""
    meta = result["_meta"]
    assert meta.get("dragoman/repeated", True) is True
    return "dragoman/repeated" in meta


_OF_ONE_CALL = frozenset({"_meta", "runId", "correlationId", "durationMs"})


def without_ids(value: Any) -> Any:
    """All of a result that the calls with one key have in common: what is inside of its texts included."""
    if isinstance(value, str) and value.startswith(("{", "[")):
        return without_ids(msgspec.json.decode(value))
    if isinstance(value, dict):
        return {name: without_ids(each) for name, each in value.items() if name not in _OF_ONE_CALL}
    return [without_ids(each) for each in value] if isinstance(value, list) else value
