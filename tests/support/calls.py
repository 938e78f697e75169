"""Calls under the control of a test: handlers that wait to be let go, a loop that runs late, a look at the answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from dragoman import Cancellation, ToolContext, ToolDefinition, define_tool, tool
from dragoman.schemas.schema import Schema
from dragoman.testing import MemoryClient
from tests.support.waiting import PATIENCE


def answers(client: MemoryClient, request_id: int | str) -> list[dict[str, Any]]:
    """Every answer to a request so far; there should never be two."""
    return [message for message in client.received() if message.get("id") == request_id]


def begin(client: MemoryClient, name: str, **params: Any) -> int | str:
    """Send a `tools/call` without waiting for its answer."""
    return client.begin("tools/call", {"name": name, **params})


async def happened(event: threading.Event) -> None:
    """Wait for what a thread does, without holding up the event loop."""
    assert await asyncio.to_thread(event.wait, PATIENCE)


class Held:
    """A tool that runs on the event loop until it is let go, whatever its token says."""

    def __init__(self, name: str = "hold", *, timeout_ms: int | None = None) -> None:
        self.begun = asyncio.Event()
        self.release = asyncio.Event()
        self.ended = asyncio.Event()
        self.tokens: list[Cancellation] = []
        self.finished = 0
        self.tool = tool(name=name, timeout_ms=timeout_ms)(self._run)

    async def _run(self, context: ToolContext) -> str:
        self.tokens.append(context.cancellation)
        self.begun.set()
        await self.release.wait()
        self.finished += 1
        self.ended.set()
        return "done"


class Hung:
    """A tool that blocks its thread until it is let go."""

    def __init__(self, name: str = "hang", *, timeout_ms: int | None = None) -> None:
        self.begun = threading.Event()
        self.release = threading.Event()
        self.finished = threading.Event()
        self.tool = tool(name=name, timeout_ms=timeout_ms)(self._run)

    def _run(self) -> str:
        self.begun.set()
        self.release.wait(PATIENCE)
        self.finished.set()
        return "done"


class Spy:
    """A tool that takes anything, and counts how often it was reached."""

    def __init__(self, name: str = "spy", schema: Schema | None = None) -> None:
        self.calls = 0
        self.tool = define_tool(
            ToolDefinition(name=name, description="", input_schema=schema or {"type": "object"}), self._run
        )

    async def _run(self, arguments: dict[str, Any], context: Any) -> str:
        self.calls += 1
        return "reached"


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class LateClock:
    """A clock on a busy loop: time passes, and timers fire only when the loop gets round to it."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self._timers: list[_Timer] = []

    def now(self) -> datetime:
        return datetime(2024, 1, 15, tzinfo=UTC)

    def timestamp(self) -> str:
        return "2024-01-15T00:00:00.000Z"

    def monotonic(self) -> float:
        return self.elapsed

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        self._timers.append(_Timer(callback))
        return self._timers[-1]

    def run_loop(self) -> None:
        """Fire every timer that was asked for so far."""
        due, self._timers = self._timers, []
        for timer in due:
            if timer.callback is not None:
                timer.callback()
