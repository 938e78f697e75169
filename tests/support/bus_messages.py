"""Messages for a bus, and how tests take them."""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman.messaging.bus import Bus, BusDelivery, BusMessage, Subscription
from tests.support.waiting import PATIENCE

ERROR = b'{"code":"TIMEOUT"}'


def message(id: str = "m1", subject: str = "jobs.a", **fields: Any) -> BusMessage:
    return BusMessage(subject=subject, id=id, **{"body": id.encode(), **fields})


def subscribed(bus: Bus, pattern: str = "jobs.*", *, most: int = 100, ack_seconds: float = 30.0) -> Subscription:
    return bus.subscribe(pattern, most_per_subject=most, ack_seconds=ack_seconds)


async def publish(bus: Bus, *ids: str, subject: str = "jobs.a") -> None:
    for id in ids:
        assert await bus.publish(message(id, subject))


async def taken(subscription: Subscription, count: int = 1) -> list[BusDelivery]:
    """The next deliveries, one after another."""
    async with asyncio.timeout(PATIENCE):
        return [await subscription.take() for _ in range(count)]


async def taken_ids(subscription: Subscription, count: int = 1) -> list[str]:
    return [delivery.message.id for delivery in await taken(subscription, count)]


async def let_others_run() -> None:
    """Let whatever is ready run, such as a `take` that then waits."""
    for _ in range(10):
        await asyncio.sleep(0)
