"""Waiting for whoever was asked: it has a limit of its own, and no tool's deadline counts it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from dragoman.calls.call import Call
from dragoman.calls.deadlines import Deadlines
from dragoman.clock import Clock
from dragoman.errors import ClientCannotBeAsked

T = TypeVar("T")


class Patience:
    """Asks a call's client and waits for the answer, while the call's own time stands still."""

    def __init__(self, limit_ms: int, deadlines: Deadlines, clock: Clock) -> None:
        self.limit = limit_ms / 1000
        self._deadlines = deadlines
        self._clock = clock

    async def ask(self, call: Call, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The client's result; raises what `wait` and `Client.ask` raise."""
        if call.client is None:
            raise ClientCannotBeAsked(method)
        call.asked += 1
        return await self.wait(call, call.client.ask(method, params))

    async def wait(self, call: Call, coming: Coroutine[Any, Any, T]) -> T:
        """What is `coming`; raises `TimeoutError` at the limit, and `Aborted` when the call is cancelled first."""
        began, due = self._clock.monotonic(), call.due
        call.due = math.inf
        loop = asyncio.get_running_loop()
        too_late = asyncio.Event()
        timer = self._clock.call_later(self.limit, too_late.set)
        answer = loop.create_task(coming)
        others = [loop.create_task(too_late.wait()), loop.create_task(call.cancellation.wait())]
        try:
            await asyncio.wait((answer, *others), return_when=asyncio.FIRST_COMPLETED)
            call.cancellation.raise_if_set()
            if not answer.done():
                raise TimeoutError
            return answer.result()
        finally:
            timer.cancel()
            for other in others:
                other.cancel()
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # Looked at, whoever it was that ended the waiting.
            self._go_on(call, due, self._clock.monotonic() - began)

    def _go_on(self, call: Call, due: float, waited: float) -> None:
        call.started += waited
        call.waited_ms += int(waited * 1e6) / 1000
        call.due = due + waited
        if call.due < self._deadlines.next:
            self._deadlines.set_timer(call.due)
