"""The turns of requests that have a `seq`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from dragoman.clock import Timer
from dragoman.gateway.requests import STREAM, ActionRequests
from dragoman.gateway.streams import StreamTurns
from dragoman.messaging.bus import Bus, BusDelivery, BusMessage
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.contract.engines import opened_storages
from tests.support.waiting import until

SUBJECT = "dragoman.accepted.acme"


class WaitingClock(ManualClock):
    """Tells whether somebody waits for it."""

    is_waited_for = False

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        self.is_waited_for = True
        return super().call_later(seconds, callback)


async def taken(storage: Storage, id: str, stream: str | None = "s") -> BusDelivery:
    """A message that was published just now, as this storage holds it."""
    bus = storage.port(Bus)
    headers = {} if stream is None else {STREAM: stream}
    await bus.publish(BusMessage(subject=SUBJECT, id=id, body=b"", headers=headers))
    return await bus.subscribe(SUBJECT, most_per_subject=10, ack_seconds=60).take()


async def test_of_one_stream_the_first_that_was_accepted_goes_first_and_others_wait_for_nobody(
    tmp_path: Path,
) -> None:
    clock, order, gate = ManualClock(), list[str](), asyncio.Event()
    async with opened_storages("memory", tmp_path, clock) as (storage,):
        bus, turns = storage.port(Bus), StreamTurns(storage.port(ActionRequests), clock)

        async def carry_out(delivery: BusDelivery) -> None:
            async with turns.turn(delivery):
                if delivery.message.id == "first":
                    await gate.wait()
                order.append(delivery.message.id)
                await bus.ack(delivery)

        async with asyncio.TaskGroup() as group:
            for id, stream in (("first", "s"), ("second", "s"), ("third", "s"), ("another", "t"), ("none", None)):
                group.create_task(carry_out(await taken(storage, id, stream)))
            await until(lambda: len(order) == 2)
            gate.set()
        assert (set(order[:2]), order[2:]) == ({"another", "none"}, ["first", "second", "third"])


async def test_a_request_waits_for_the_one_before_it_that_another_process_holds(tmp_path: Path) -> None:
    clock, has_begun = WaitingClock(), asyncio.Event()
    async with opened_storages("sqlite", tmp_path, ManualClock(), count=2) as (first, second):
        earlier, later = await taken(first, "first"), await taken(second, "second")
        turns = StreamTurns(second.port(ActionRequests), clock)

        async def carry_out() -> None:
            async with turns.turn(later):
                has_begun.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(carry_out())
            await until(lambda: clock.is_waited_for)
            assert not has_begun.is_set()
            await first.port(Bus).ack(earlier)
            clock.advance(1)
            await has_begun.wait()


async def test_a_request_that_is_cancelled_while_it_waits_holds_up_no_other(tmp_path: Path) -> None:
    clock, gate = ManualClock(), asyncio.Event()
    async with opened_storages("memory", tmp_path, clock) as (storage,):
        bus, turns = storage.port(Bus), StreamTurns(storage.port(ActionRequests), clock)
        held = [await taken(storage, str(number)) for number in range(3)]

        async def carry_out(delivery: BusDelivery) -> None:
            async with turns.turn(delivery):
                if delivery is held[0]:
                    await gate.wait()
                await bus.ack(delivery)

        tasks = [asyncio.create_task(carry_out(each)) for each in held]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait(tasks[1:2])
        await bus.ack(held[1])
        gate.set()
        await asyncio.gather(tasks[0], tasks[2])
