"""Waiting for whoever was asked: it has a limit of its own, and no tool's deadline counts it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from dragoman.calls.call import Call
from dragoman.calls.deadlines import Deadlines
from dragoman.clock import Clock
from dragoman.errors import ClientCannotBeAsked, Stopping

T = TypeVar("T")


class _Pause(Struct):
    """A call whose time stands still."""

    began: float
    due: float
    waits: int = 0
    """A handler may ask several things at once."""


class Patience:
    """Asks a call's client and waits for the answer, while the call's own time stands still."""

    def __init__(self, limit_ms: int, deadlines: Deadlines, clock: Clock) -> None:
        self.limit = limit_ms / 1000
        self._deadlines = deadlines
        self._clock = clock
        self._pauses: dict[Call, _Pause] = {}
        self._ends: set[asyncio.Future[None]] = set()
        self._is_over = False

    async def ask(self, call: Call, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The client's result; raises what `wait` and `Client.ask` raise."""
        if call.origin.client is None:
            raise ClientCannotBeAsked(method)
        call.asked += 1
        if call.rest is None:
            return await self.wait(call, call.origin.client.ask(method, params))
        # Getting the slot back is no part of its time either.
        with self._standing_still(call):
            async with call.rest():
                return await self.wait(call, call.origin.client.ask(method, params))

    async def wait(self, call: Call, coming: Coroutine[Any, Any, T]) -> T:
        """What is `coming`, unless something else comes first.

        Raises `TimeoutError` at the limit, `Aborted` when the call is cancelled, `Stopping` when the server stops.
        """
        if self._is_over:
            coming.close()
            raise Stopping
        loop = asyncio.get_running_loop()
        end: asyncio.Future[None] = loop.create_future()
        answer, cancelled = loop.create_task(coming), loop.create_task(call.cancellation.wait())
        timer = self._clock.call_later(self.limit, partial(_settle, end))
        self._ends.add(end)
        try:
            with self._standing_still(call):
                await asyncio.wait((answer, cancelled, end), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self._cut_short(call)
            call.cancellation.raise_if_set()
            if answer.done():
                return answer.result()
            raise Stopping if self._is_over else TimeoutError
        finally:
            self._ends.discard(end)
            timer.cancel()
            cancelled.cancel()
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # Looked at, whoever it was that ended the waiting.
            del answer  # An error in it leads back here, through its traceback.

    def stop(self) -> None:
        """Wait for nobody any longer: the server stops, and people take their time."""
        self._is_over = True
        for end in self._ends:
            _settle(end)

    def _cut_short(self, call: Call) -> None:
        """A call that is run again after the restart asks again then: it must not go on as if nobody had answered."""
        if self._is_over and call.resumes:
            call.cancellation.set("shutdown")

    @contextmanager
    def _standing_still(self, call: Call) -> Iterator[None]:
        """Keep this time out of the call's duration, and its deadline away until it is over."""
        pause = self._pauses.setdefault(call, _Pause(self._clock.monotonic(), call.due))
        pause.waits += 1
        call.due = math.inf
        try:
            yield
        finally:
            pause.waits -= 1
            if not pause.waits:
                del self._pauses[call]
                self._go_on(call, pause)

    def _go_on(self, call: Call, pause: _Pause) -> None:
        waited = self._clock.monotonic() - pause.began
        call.started += waited
        call.waited_ms += int(waited * 1e6) / 1000
        call.due = pause.due + waited
        if call.due < self._deadlines.next:
            self._deadlines.set_timer(call.due)


def _settle(end: asyncio.Future[None]) -> None:
    if not end.done():
        end.set_result(None)
