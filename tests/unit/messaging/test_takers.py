"""The `take` calls of a subscription: whatever is handed out reaches one that waits, or is told to be unwanted."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.errors import StorageBusy, StorageClosed
from dragoman.messaging.bus import BusDelivery
from dragoman.messaging.takers import Takers
from tests.support.bus_messages import let_others_run, message


class Desk:
    """Takers, and what they asked for and did not want."""

    def __init__(self) -> None:
        self.wanted = 0
        self.unwanted: list[BusDelivery] = []
        self.takers = Takers(self.want, self.unwanted.append)

    def want(self) -> None:
        self.wanted += 1

    async def waiting(self, count: int) -> list[asyncio.Task[BusDelivery]]:
        tasks = [asyncio.create_task(self.takers.take()) for _ in range(count)]
        await let_others_run()
        return tasks


def delivery(number: int) -> BusDelivery:
    return BusDelivery(message=message(), number=number, published_at=0.0, attempt=1, fence=1)


ONE, TWO, THREE = map(delivery, range(1, 4))


async def test_those_that_wait_get_one_each_in_order_and_the_rest_is_left() -> None:
    desk = Desk()
    tasks = await desk.waiting(2)
    assert (desk.wanted, len(desk.takers)) == (2, 2)
    assert desk.takers.hand_out([ONE, TWO, THREE]) == [THREE]
    assert (await asyncio.gather(*tasks), len(desk.takers)) == ([ONE, TWO], 0)


async def test_a_call_that_was_cancelled_while_it_waited_gets_nothing() -> None:
    desk = Desk()
    first, second, third = await desk.waiting(3)
    first.cancel()
    assert desk.takers.hand_out([ONE]) == []
    assert await second is ONE
    third.cancel()
    await let_others_run()
    assert (first.cancelled(), third.cancelled(), len(desk.takers), desk.unwanted) == (True, True, 0, [])


async def test_what_was_handed_to_a_call_that_is_cancelled_goes_to_the_next_or_is_unwanted() -> None:
    desk = Desk()
    first, second, third = await desk.waiting(3)
    desk.takers.hand_out([ONE])
    first.cancel()
    assert await second is ONE
    desk.takers.hand_out([TWO])
    third.cancel()
    await let_others_run()
    assert (first.cancelled(), third.cancelled(), desk.unwanted) == (True, True, [TWO])


async def test_an_error_ends_the_calls_that_wait_and_not_those_that_follow() -> None:
    desk = Desk()
    first, second = await desk.waiting(2)
    first.cancel()
    desk.takers.fail(StorageBusy("busy"))
    with pytest.raises(StorageBusy):
        await second
    (third,) = await desk.waiting(1)
    desk.takers.hand_out([ONE])
    assert await third is ONE


async def test_calls_end_when_the_subscription_is_closed_and_ever_after() -> None:
    desk = Desk()
    (first,) = await desk.waiting(1)
    desk.takers.close()
    for ended in (first, desk.takers.take()):
        with pytest.raises(StorageClosed):
            await ended
    assert desk.wanted == 1
