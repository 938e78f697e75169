"""Takes messages from a bus and has them handled, several at a time, for as long as the server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from dragoman.clock import Clock, sleep
from dragoman.errors import InternalFailure, Stopping, StorageError
from dragoman.messaging.bus import Bus, BusDelivery, Subscription
from dragoman.telemetry.log import Logger, exception_facts

_PAUSE_SECONDS = 1.0
"""Before the storage is tried again."""


class Consumer:
    """The loop of a subscription. A message whose handling fails in an unforeseen way is a dead letter."""

    def __init__(
        self,
        bus: Bus,
        pattern: str,
        handle: Callable[[BusDelivery], Awaitable[None]],
        clock: Clock,
        logger: Logger,
        *,
        at_once: int,
        most_per_subject: int,
        ack_seconds: float,
    ) -> None:
        """`handle` settles what it is given, or raises a `StorageError` and is tried again, or `Stopping`."""
        self._bus = bus
        self._pattern = pattern
        self._handle = handle
        self._clock = clock
        self._logger = logger
        self._at_once = at_once
        self._most_per_subject = most_per_subject
        self._ack_seconds = ack_seconds

    async def run(self) -> None:
        """Until it is cancelled. Messages that are not settled by then are delivered again, here or elsewhere."""
        subscription = self._bus.subscribe(
            self._pattern, most_per_subject=self._most_per_subject, ack_seconds=self._ack_seconds
        )
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._at_once):
                    group.create_task(self._work(subscription))
        finally:
            await subscription.close()

    async def _work(self, subscription: Subscription) -> None:
        while True:
            try:
                delivery = await subscription.take()
            except StorageError as error:
                await self._pause("messages cannot be taken", error)
                continue
            if not await self._handled(delivery):
                return

    async def _handled(self, delivery: BusDelivery) -> bool:
        """Whether there may be more: the server is not stopping."""
        handle = self._handle
        while True:
            try:
                await handle(delivery)
                return True
            except Stopping:
                return False
            except StorageError as error:
                await self._pause("a message cannot be settled", error)
            except Exception as error:
                facts = exception_facts(error, InternalFailure.code)
                self._logger.error("a message could not be handled", {"subject": delivery.message.subject, **facts})
                handle = self._give_up

    async def _give_up(self, delivery: BusDelivery) -> None:
        error = {"code": InternalFailure.code, "message": "The message could not be read or handled"}
        await self._bus.give_up(delivery, msgspec.json.encode({**error, "attempt": delivery.attempt}))

    async def _pause(self, said: str, error: StorageError) -> None:
        self._logger.warn(said, {"reason": str(error)})
        await sleep(self._clock, _PAUSE_SECONDS)
