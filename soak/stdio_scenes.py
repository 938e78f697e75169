"""What a client does over stdio: one connection, many requests at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from dragoman.testing.connection import ENVELOPE
from soak.asks import MEGABYTE, Ask, Asked, any_ask, some_echo
from soak.ledger import ABORTED, Ledger, Outcomes
from tests.support.processes import HANDSHAKE, line

_PROGRESS_LIMIT = 10.0  # More than a client stops reading, less than the deadline of a tool.
_TOO_LONG = b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * (11 << 20) + b'"}\n'
_BAD_LINES = ((-32700, b"{\n"), (-32700, b"\xff\xff\n"), (-32600, b"[]\n"), (-32600, _TOO_LONG))


class StdioClient:
    """The client of one server. Answers are found by their id; what has no id answers the one bad line under way."""

    def __init__(
        self, process: asyncio.subprocess.Process, ledger: Ledger, chance: random.Random, *, is_modern: bool
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self._stdout = process.stdin, process.stdout
        self.ledger = ledger
        self.chance = chance
        self.is_modern = is_modern
        self.one_bad_line = asyncio.Lock()
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._waiting: dict[Any, asyncio.Queue[dict[str, Any]]] = {}

    async def run(self) -> None:
        """Read until the server ends."""
        while True:
            await self.may_read.wait()
            data = await self._stdout.readline()
            if not data:
                return
            received = msgspec.json.decode(data)
            about = received["params"]["progressToken"] if "method" in received else received["id"]
            if about in self._waiting:
                self._waiting[about].put_nowait(received)
            else:
                self.ledger.complain(f"stdio: a message that nobody waits for: {data!r}")

    async def handshake(self) -> None:
        if not self.is_modern:
            self.expect(0)
            await self.send(HANDSHAKE)
            await self.next(0)

    def ask(self, ask: Ask, due: Outcomes | None = None, *, has_progress: bool = False) -> Asked:
        return Asked(self.ledger, ask, due, has_progress=has_progress)

    def line(self, asked: Asked) -> bytes:
        self.expect(asked.id)
        return asked.body(ENVELOPE if self.is_modern else None) + b"\n"

    def expect(self, request_id: int | None) -> None:
        """Messages about this request will come; None is that of a line whose id cannot be read."""
        self._waiting[request_id] = asyncio.Queue()

    async def send(self, data: bytes) -> None:
        self.stdin.write(data)
        await self.stdin.drain()

    async def next(self, request_id: int | None) -> dict[str, Any]:
        """The next message about a request; no more are expected after its answer."""
        received = await self._waiting[request_id].get()
        if "method" not in received:
            del self._waiting[request_id]
        return received

    def forget(self, asked: Asked) -> None:
        """No answer will come."""
        self._waiting.pop(asked.id, None)


async def call_one_by_one(client: StdioClient) -> None:
    for _ in range(client.chance.randint(1, 20)):
        asked = client.ask(any_ask(client.chance))
        await client.send(client.line(asked))
        asked.check(await client.next(asked.id))


async def call_at_once(client: StdioClient) -> None:
    calls = [client.ask(some_echo()) for _ in range(client.chance.randint(2, 32))]
    await client.send(b"".join(map(client.line, calls)))
    for asked in calls:
        asked.check(await client.next(asked.id))


async def follow_progress(client: StdioClient) -> None:
    asked = client.ask(Ask("report", {"steps": 3, "seconds": 0.02}, 3), has_progress=True)
    await client.send(client.line(asked))
    while "method" in (received := await client.next(asked.id)):
        pass
    asked.check(received)


async def cancel(client: StdioClient) -> None:
    """A server drops progress while its client does not read, so the call is cancelled without it after a while."""
    asked = client.ask(Ask("wait"), ABORTED, has_progress=True)
    await client.send(client.line(asked))
    first: dict[str, Any] = {"method": "none"}
    with suppress(TimeoutError):
        first = await asyncio.wait_for(client.next(asked.id), _PROGRESS_LIMIT)
    if "method" in first:
        client.forget(asked)
        await client.send(line("notifications/cancelled", {"requestId": asked.id}))
    else:
        asked.check(first)


async def send_something_bad(client: StdioClient) -> None:
    code, data = client.chance.choice(_BAD_LINES)
    async with client.one_bad_line:
        client.expect(None)
        await client.send(data)
        answer = await client.next(None)
    assert answer["error"]["code"] == code, answer


async def stop_reading(client: StdioClient) -> None:
    """For a second, while eight megabytes are on their way."""
    client.may_read.clear()
    calls = [client.ask(MEGABYTE) for _ in range(8)]
    try:
        await client.send(b"".join(map(client.line, calls)))
        await asyncio.sleep(1.0)
    finally:
        client.may_read.set()
    for asked in calls:
        asked.check(await client.next(asked.id))


QUICK: tuple[tuple[Callable[[StdioClient], Awaitable[None]], int], ...] = (
    (call_one_by_one, 40),
    (call_at_once, 10),
    (follow_progress, 3),
    (cancel, 5),
    (send_something_bad, 3),
    (stop_reading, 1),
)
