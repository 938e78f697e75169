"""The `take` calls of one subscription that wait for a message."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from dragoman.errors import StorageClosed
from dragoman.messaging.bus import BusDelivery


class Takers:
    """The pending `take` calls, the oldest first. Belongs to one event loop.

    `wanted` is called for each new one. `unwanted` gets a message that was handed to a call just when that was
    cancelled, and that no other call waits for.
    """

    def __init__(self, wanted: Callable[[], None], unwanted: Callable[[BusDelivery], None]) -> None:
        self._wanted = wanted
        self._unwanted = unwanted
        self._waiting: deque[asyncio.Future[BusDelivery]] = deque()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def take(self) -> BusDelivery:
        """The next message. Raises `StorageClosed` once the subscription is closed."""
        if self._is_closed:
            raise _closed()
        future: asyncio.Future[BusDelivery] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wanted()
        try:
            return await future
        except asyncio.CancelledError:
            if future in self._waiting:
                self._waiting.remove(future)
            elif not future.cancelled() and future.exception() is None:
                for left in self.hand_out([future.result()]):
                    self._unwanted(left)
            raise

    def hand_out(self, deliveries: Iterable[BusDelivery]) -> list[BusDelivery]:
        """Give each waiting call one message; the messages that are left."""
        left = []
        for delivery in deliveries:
            while self._waiting and self._waiting[0].done():  # Cancelled, and not yet told so.
                self._waiting.popleft()
            if self._waiting:
                self._waiting.popleft().set_result(delivery)
            else:
                left.append(delivery)
        return left

    def fail(self, error: Exception) -> None:
        """Every call that waits raises `error`."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)

    def close(self) -> None:
        """Every call raises `StorageClosed`, now and later."""
        self._is_closed = True
        self.fail(_closed())


def _closed() -> StorageClosed:
    return StorageClosed("the subscription is closed")
