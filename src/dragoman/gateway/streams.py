"""The order of requests that have a `seq`: those of one stream are carried out one after the other.

Otherwise a request that was accepted in its turn could be overtaken by the next one, and then be ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.clock import Clock, sleep
from dragoman.gateway.requests import STREAM, ActionRequests
from dragoman.messaging.bus import BusDelivery

_LOOK_SECONDS = 0.05
"""How often it looks whether another process has finished what comes before."""


class StreamTurns:
    """The deliveries that one process holds, by stream. The one that was accepted first goes first."""

    def __init__(self, requests: ActionRequests, clock: Clock) -> None:
        self._requests = requests
        self._clock = clock
        self._held: dict[tuple[str, str], dict[tuple[int, int], asyncio.Event]] = {}

    @asynccontextmanager
    async def turn(self, delivery: BusDelivery) -> AsyncIterator[None]:
        """Wait until nobody holds an earlier delivery of the same stream. Raises `StorageError`s."""
        stream = delivery.message.headers.get(STREAM)
        if stream is None:
            yield
            return
        key, place = (delivery.message.subject, stream), (delivery.number, delivery.fence)
        held = self._held.setdefault(key, {})
        held[place] = first = asyncio.Event()
        try:
            if min(held) != place:
                await first.wait()
            while await self._requests.is_behind(delivery):
                await sleep(self._clock, _LOOK_SECONDS)
            yield
        finally:
            del held[place]
            if held:
                held[min(held)].set()
            else:
                del self._held[key]
