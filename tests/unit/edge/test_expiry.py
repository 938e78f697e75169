"""Streams that end with their token."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from dragoman import Caller
from dragoman.access.callers import ANONYMOUS, LEEWAY_SECONDS
from dragoman.edge.asgi import Receive, Scope, Send, until_gone
from dragoman.edge.http.expiry import until_expired
from dragoman.testing import ManualClock
from tests.support.waiting import PATIENCE


@pytest.mark.parametrize(
    ("end", "left"), [(None, None), (10, 10), (0, LEEWAY_SECONDS), (-10, LEEWAY_SECONDS - 10), (-LEEWAY_SECONDS - 1, 0)]
)
def test_a_token_has_time_left_until_it_ends_and_then_the_leeway(end: float | None, left: float | None) -> None:
    caller = Caller("ada", expires_at=None if end is None else 1000.0 + end)
    assert caller.seconds_left(1000.0) == left


class Scene:
    """A stream that is open, its clock, and what was sent on it."""

    def __init__(self, seconds: float | None) -> None:
        self.clock = ManualClock()
        self.sent: list[MutableMapping[str, Any]] = []
        self.opened = asyncio.Event()
        end = None if seconds is None else self.clock.now().timestamp() + seconds
        app = until_expired(self._stream, Caller("ada", expires_at=end), self.clock)
        self.running = asyncio.create_task(self._run(app))

    async def _run(self, app: Any) -> None:
        await app({}, self._receive, self._send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        self.opened.set()
        await until_gone(receive)

    async def _receive(self) -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)


async def test_a_stream_ends_in_order_when_its_token_does() -> None:
    scene = Scene(5)
    await scene.opened.wait()
    scene.clock.advance(4.9)
    await asyncio.sleep(0)
    assert not scene.running.done()
    scene.clock.advance(0.2)
    async with asyncio.timeout(PATIENCE):
        await scene.running
    assert scene.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_stream_whose_token_never_ends_goes_on() -> None:
    scene = Scene(None)
    await scene.opened.wait()
    scene.clock.advance(1_000_000)
    await asyncio.sleep(0)
    assert not scene.running.done()
    scene.running.cancel()


async def test_an_answer_that_is_complete_is_not_added_to() -> None:
    clock, sent = ManualClock(), []

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        clock.advance(10)
        await send({"type": "http.response.body", "body": b"all"})

    async def note(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError

    caller = Caller("ada", expires_at=clock.now().timestamp() + 5)
    await until_expired(answer, caller, clock)({}, receive, note)
    assert len(sent) == 2
    assert until_expired(answer, ANONYMOUS, clock) is answer
