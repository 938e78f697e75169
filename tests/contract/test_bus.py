"""The contract of `Bus`, for every engine, also out of several processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from itertools import cycle
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.errors import BusFull, StorageClosed
from dragoman.messaging import bus as limits
from dragoman.messaging.bus import MOST_HEADER_BYTES, Bus, BusDelivery, DeadLetters
from dragoman.messaging.subjects import ALL_ACTIONS, actions_subject, events_subject, replies_subject
from dragoman.replies.vocabulary import STATUSES, words_for
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.contract.engines import SITES, opened_storages
from tests.support.bus_messages import ERROR, let_others_run, message, publish, subscribed, taken, taken_ids
from tests.support.waiting import PATIENCE, until

NAMES = ["plain", "*", ">", "a.b", ".", "..", "", "'; DROP TABLE bus_message; --", '"', "%_", "Ünïcode", "日本", "\0"]
MANY = 10_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=SITES, ids=str)
async def storages(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[list[Storage]]:
    engine, count = request.param
    async with opened_storages(engine, tmp_path, clock, count) as storages:
        yield storages


@pytest.fixture
def buses(storages: list[Storage]) -> list[Bus]:
    """The same bus, as each process has it."""
    return [storage.port(Bus) for storage in storages]


@pytest.fixture
def bus(buses: list[Bus]) -> Bus:
    """Of the process that publishes."""
    return buses[0]


@pytest.fixture
def other(buses: list[Bus]) -> Bus:
    """Of another process, where there is one."""
    return buses[-1]


# Publishing and order.


async def test_a_message_is_delivered_as_it_was_published(bus: Bus, other: Bus, clock: ManualClock) -> None:
    now = clock.now().timestamp()
    sent = message(body=b"\0\xff{}", headers={"trace": "ü", "empty": ""}, expires_at=now + 5)
    assert await bus.publish(sent)
    (delivery,) = await taken(subscribed(other))
    assert (delivery.message, delivery.published_at) == (sent, now)
    assert (delivery.attempt, delivery.fence, delivery.errors) == (1, 1, ())


async def test_a_subscription_that_waits_is_woken_by_a_message(bus: Bus, other: Bus) -> None:
    waiting = asyncio.create_task(taken_ids(subscribed(other)))
    await let_others_run()
    await publish(bus, "m1")
    assert await waiting == ["m1"]


async def test_messages_of_a_subject_come_in_the_order_of_their_publication(bus: Bus, other: Bus) -> None:
    ids = [f"m{number:03}" for number in range(100)]
    await asyncio.gather(*(bus.publish(message(id)) for id in ids))
    deliveries = await taken(subscribed(other), 100)
    assert [delivery.message.id for delivery in deliveries] == ids
    numbers = [delivery.number for delivery in deliveries]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("pattern", ["jobs.a", "jobs.*"])
async def test_a_subscription_gets_what_its_pattern_matches_and_nothing_else(
    bus: Bus, other: Bus, pattern: str
) -> None:
    for subject in ("jobs", "jobs.", "jobs.a.b", "jobs/a", "jobs.a\0", "other.a", "Jobs.a", "jobs.0.x"):
        await publish(bus, "other", subject=subject)
    await publish(bus, "m1", subject="jobs.a")
    wanted = {"jobs.a": ["jobs.a"], "jobs.*": ["jobs.a", "jobs.a\0"]}[pattern]
    subscription = subscribed(other, pattern)
    assert [each.message.subject for each in await taken(subscription, len(wanted))] == wanted
    waiting = asyncio.create_task(taken_ids(subscription))
    await publish(bus, "m2", subject="jobs.a")
    assert await waiting == ["m2"]


@pytest.mark.parametrize("name", [*NAMES, "x" * 5000])
async def test_any_name_is_a_subject_of_its_own(bus: Bus, other: Bus, name: str) -> None:
    await publish(bus, "raw", subject=name)
    assert await taken_ids(subscribed(other, name)) == ["raw"]
    for make in (actions_subject, events_subject, lambda tenant: replies_subject("t", tenant)):
        await publish(bus, "m1", subject=make(name))
        await publish(bus, "m2", subject=make("another"))
        assert await taken_ids(subscribed(other, make(name))) == ["m1"]


async def test_each_tenant_is_matched_by_the_wildcard_and_is_nobody_elses(bus: Bus, other: Bus) -> None:
    subscription = subscribed(other, ALL_ACTIONS)
    names = [name for name in NAMES if name]
    for name in names:
        await publish(bus, name, subject=actions_subject(name))
    assert sorted(await taken_ids(subscription, len(names))) == sorted(names)


# Duplicates.


async def test_a_second_message_with_the_same_subject_and_id_is_the_first_whatever_became_of_it(
    bus: Bus, other: Bus
) -> None:
    same, subscription = message(body=b"first"), subscribed(other)
    assert await bus.publish(same)
    assert not await other.publish(replace(same, body=b"waiting"))
    (held,) = await taken(subscription)
    assert not await bus.publish(same)
    assert await other.retry(held, 10.0, ERROR)
    assert not await bus.publish(same)
    assert await bus.publish(replace(same, subject="jobs.b"))
    (elsewhere,) = await taken(subscription)
    assert (elsewhere.message.subject, elsewhere.number != held.number) == ("jobs.b", True)
    assert await other.ack(elsewhere)
    assert not await bus.publish(elsewhere.message)


async def test_a_second_message_after_the_first_was_given_up_is_the_first(bus: Bus, other: Bus) -> None:
    await publish(bus, "m1")
    (delivery,) = await taken(subscribed(other))
    assert await other.give_up(delivery, ERROR)
    assert not await bus.publish(message("m1"))


async def test_of_fifty_that_publish_the_same_message_at_once_one_is_told_that_it_is_new(buses: list[Bus]) -> None:
    publishing = [bus.publish(message()) for bus, _ in zip(cycle(buses), range(50), strict=False)]
    assert sorted(await asyncio.gather(*publishing)) == [*[False] * 49, True]


# Holding.


@pytest.mark.requirement("MC-TRANS-04")
async def test_at_most_so_many_messages_of_a_subject_are_held_by_all_together(bus: Bus, other: Bus) -> None:
    ones, others = subscribed(bus, most=2), subscribed(other, most=2)
    await publish(bus, "a1", "a2", "a3", "a4")
    (first,), (second,) = await taken(ones), await taken(others)
    waiting = [asyncio.create_task(taken(each)) for each in (ones, others)]
    await publish(bus, "b1", "b2", subject="jobs.b")
    got = [delivery.message.id for each in await asyncio.gather(*waiting) for delivery in each]
    assert (first.message.id, second.message.id, sorted(got)) == ("a1", "a2", ["b1", "b2"])
    assert await bus.ack(first)
    assert await taken_ids(others) == ["a3"]
    assert await bus.give_up(second, ERROR)
    assert await taken_ids(ones) == ["a4"]


async def test_no_message_is_held_twice_and_each_is_delivered_once(bus: Bus, other: Bus) -> None:
    seen: Counter[str] = Counter()

    async def work(each: Bus) -> None:
        subscription = subscribed(each, most=3)
        while True:
            delivery = await subscription.take()
            seen[delivery.message.id] += 1
            assert await each.ack(delivery)

    workers = [asyncio.create_task(work(each)) for each in (bus, other, bus, other)]
    ids = [f"m{number}" for number in range(200)]
    await asyncio.gather(*(bus.publish(message(id, f"jobs.{id[-1]}")) for id in ids))
    await until(lambda: len(seen) == len(ids))
    for worker in workers:
        worker.cancel()
    assert seen == Counter(ids)


@pytest.mark.slow
async def test_of_ten_thousand_messages_that_wait_each_is_delivered_once_and_in_order(bus: Bus, other: Bus) -> None:
    for start in range(0, MANY, 1000):
        await asyncio.gather(*(bus.publish(message(f"{number}")) for number in range(start, start + 1000)))
    subscription = subscribed(other, most=MANY)
    seen: list[str] = []

    async def take() -> None:
        while len(seen) < MANY:
            seen.extend(await taken_ids(subscription))

    takers = [asyncio.create_task(take()) for _ in range(32)]
    await until(lambda: len(seen) == MANY)
    for taker in takers:
        taker.cancel()
    assert seen == [f"{number}" for number in range(MANY)]


@pytest.mark.parametrize("many", [50, pytest.param(MANY, marks=pytest.mark.slow)])
async def test_subjects_take_turns_however_many_messages_one_of_them_has(bus: Bus, other: Bus, many: int) -> None:
    for start in range(0, many, 1000):
        ids = [f"a{number}" for number in range(start, min(many, start + 1000))]
        await asyncio.gather(*(bus.publish(message(id, "jobs.a")) for id in ids))
    subscription = subscribed(other)
    assert await taken_ids(subscription, 2) == ["a0", "a1"]
    await publish(bus, "b0", "b1", "b2", subject="jobs.b")
    await publish(bus, "c0", subject="jobs.c")
    assert await taken_ids(subscription, 8) == ["b0", "c0", "a2", "b1", "a3", "b2", "a4", "a5"]


# Settling.


async def test_a_settled_message_is_not_delivered_again_and_cannot_be_settled_again(bus: Bus, other: Bus) -> None:
    subscription = subscribed(other)
    await publish(bus, "m1", "m2", "m3")
    one, two, three = await taken(subscription, 3)
    assert await other.ack(one)
    assert await bus.give_up(two, ERROR)
    assert await bus.retry(three, 100.0, ERROR)
    for each in (one, two, three):
        assert not await other.ack(each)
        assert not await bus.retry(each, 0.0, ERROR)
        assert not await bus.give_up(each, ERROR)
    await subscription.close()
    await publish(bus, "m4")
    assert await taken_ids(subscribed(bus)) == ["m4"]


@pytest.mark.requirement("MC-TRANS-04")
async def test_a_retried_message_comes_when_it_is_due_and_holds_up_no_other(
    bus: Bus, other: Bus, clock: ManualClock
) -> None:
    subscription = subscribed(other, most=1)
    await publish(bus, "m1", "m2", "m3")
    (first,) = await taken(subscription)
    assert await other.retry(first, 10.0, ERROR)
    (second,) = await taken(subscription)
    clock.advance(9.9)
    assert await other.ack(second)
    (third,) = await taken(subscription)
    assert (second.message.id, third.message.id) == ("m2", "m3")
    assert await bus.ack(third)
    waiting = asyncio.create_task(taken(subscription))
    await let_others_run()
    clock.advance(0.1)
    (again,) = await waiting
    assert (again.message, again.number) == (first.message, first.number)
    assert (again.attempt, again.errors, again.fence > first.fence) == (2, (ERROR,), True)
    assert await other.retry(again, 0.0, b"not JSON")
    (at_once,) = await taken(subscription)
    assert (at_once.attempt, at_once.errors) == (3, (ERROR, b"not JSON"))


async def test_a_message_whose_subscription_closes_goes_to_another_at_once(bus: Bus, other: Bus) -> None:
    closed, open = subscribed(other), subscribed(bus)
    await publish(bus, "m1", "m2")
    (late,) = await taken(closed)
    assert await taken_ids(open) == ["m2"]
    waiting = asyncio.create_task(taken(open))
    await let_others_run()
    await closed.close()
    (again,) = await waiting
    assert (again.message.id, again.attempt, again.fence > late.fence) == ("m1", 1, True)
    for each in (bus, other):
        assert not await each.ack(late)
        assert not await each.retry(late, 0.0, ERROR)
        assert not await each.give_up(late, ERROR)
    assert await bus.ack(again)


@pytest.mark.parametrize("how", ["ack", "retry", "give_up"])
async def test_a_message_that_nobody_has_taken_since_is_settled_late(bus: Bus, other: Bus, how: str) -> None:
    await publish(bus, "m1")
    subscription = subscribed(bus)
    (held,) = await taken(subscription)
    await subscription.close()  # As when its process is taken for dead.

    def settle() -> Awaitable[bool]:
        return {
            "ack": lambda: bus.ack(held),
            "retry": lambda: bus.retry(held, 0.0, ERROR),
            "give_up": lambda: bus.give_up(held, ERROR),
        }[how]()

    assert [await settle(), await settle()] == [True, False]
    left = await taken(subscribed(other)) if how == "retry" else []
    assert [(each.message.id, each.errors) for each in left] == [("m1", (ERROR,))] * (how == "retry")


async def test_a_closed_subscription_hands_out_no_more(bus: Bus, other: Bus) -> None:
    subscription = subscribed(other)
    waiting = asyncio.create_task(subscription.take())
    await let_others_run()
    await subscription.close()
    with pytest.raises(StorageClosed):
        await waiting
    await publish(bus, "m1")
    with pytest.raises(StorageClosed):
        await subscription.take()
    await subscription.close()
    assert await taken_ids(subscribed(other)) == ["m1"]


@pytest.mark.slow
async def test_a_cancelled_take_loses_nothing(bus: Bus, other: Bus) -> None:
    subscription, seen = subscribed(other, most=1), list[str]()
    ids = [f"m{number:02}" for number in range(30)]

    async def take() -> None:
        delivery = await subscription.take()
        seen.append(delivery.message.id)
        assert delivery.attempt == 1
        assert await other.ack(delivery)

    for number, id in enumerate(ids):
        await publish(bus, id)
        taking = asyncio.create_task(subscription.take())
        for _ in range(number * 10):
            await let_others_run()
        taking.cancel()
        result = (await asyncio.gather(taking, return_exceptions=True))[0]
        if isinstance(result, BusDelivery):  # It was quicker.
            seen.append(result.message.id)
            assert await other.ack(result)
    async with asyncio.timeout(PATIENCE):
        while len(seen) < len(ids):
            await take()
    assert seen == ids


async def test_a_message_of_a_cancelled_take_goes_to_another_subscription_as_if_it_were_new(
    bus: Bus, other: Bus
) -> None:
    first, second = subscribed(other), subscribed(bus)
    for number in range(8):
        taking = asyncio.create_task(first.take())
        await let_others_run()
        await publish(bus, f"m{number}")
        for _ in range(number):
            await asyncio.sleep(0)
        taking.cancel()
        (ended,) = await asyncio.gather(taking, return_exceptions=True)
        delivery = ended if isinstance(ended, BusDelivery) else (await taken(second))[0]
        assert (delivery.message.id, delivery.attempt) == (f"m{number}", 1)


# Limits and expiry.


@pytest.mark.parametrize("what", ["messages", "bytes"])
async def test_a_subject_has_no_more_messages_and_no_more_bytes_than_it_may(
    bus: Bus, other: Bus, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    room = 3 * len(b"m1{}")
    monkeypatch.setattr(limits, *(("MOST_MESSAGES", 3) if what == "messages" else ("MOST_BYTES", room)))
    subscription = subscribed(other)
    await publish(bus, "m1", "m2", "m3")
    one, two, three = await taken(subscription, 3)
    for each in (bus, other):
        with pytest.raises(BusFull) as refused:
            await each.publish(message("m4"))
        details = {"reason": "bus_full", "limit": 3 if what == "messages" else room}
        assert refused.value.details == {**details, "retryable": True, "retryAfterMs": 1000}
        assert STATUSES[words_for(type(refused.value)).contract] == 429
        assert not await each.publish(message("m1"))
    await publish(bus, "m4", subject="jobs.b")
    assert await other.retry(one, 10.0, ERROR)
    with pytest.raises(BusFull):
        await bus.publish(message("m4"))
    assert await other.ack(two)
    assert await bus.publish(message("m4", expires_at=clock.now().timestamp() + 5))
    assert await bus.give_up(three, ERROR)
    await publish(bus, "m5")
    with pytest.raises(BusFull):
        await bus.publish(message("m6"))
    clock.advance(5)  # One has expired.
    await publish(bus, "m6")


async def test_the_headers_of_a_message_are_as_large_as_they_may_be_and_not_larger(bus: Bus) -> None:
    most = {"name": "é" * ((MOST_HEADER_BYTES - 4) // 2)}
    assert await bus.publish(replace(message("m1"), headers=most))
    with pytest.raises(ValueError, match=f"have {MOST_HEADER_BYTES + 1} bytes"):
        await bus.publish(replace(message("m2"), headers={**most, "x": ""}))
    (one,) = await taken(subscribed(bus), 1)
    assert one.message.headers == most


async def test_a_message_that_nobody_takes_in_time_is_forgotten(bus: Bus, other: Bus, clock: ManualClock) -> None:
    at = clock.now().timestamp() + 10
    subscription = subscribed(other)
    for id in ("m1", "m2"):
        assert await bus.publish(message(id, expires_at=at))
    (held,) = await taken(subscription)
    clock.advance(10)
    await publish(bus, "m3")
    assert await taken_ids(subscription) == ["m3"]
    assert await bus.publish(message("m2", body=b"anew"))
    assert (await taken(subscription))[0].message.body == b"anew"
    assert not await bus.publish(held.message)
    assert await other.ack(held)


async def test_an_expired_message_that_nobody_has_looked_for_is_forgotten_as_well(
    bus: Bus, other: Bus, clock: ManualClock
) -> None:
    assert await bus.publish(message(expires_at=clock.now().timestamp() + 10))
    clock.advance(10)
    assert await other.publish(message(body=b"anew"))
    assert not await bus.publish(message())
    assert (await taken(subscribed(other)))[0].message == message(body=b"anew")


async def test_a_message_that_expired_by_a_clock_that_was_ahead_is_taken_when_it_is_right(
    bus: Bus, other: Bus, storages: list[Storage], clock: ManualClock
) -> None:
    start = clock.now().timestamp()
    assert await bus.publish(message("m1", expires_at=start + 3_600))
    subscription, dead = subscribed(other), storages[0].port(DeadLetters)
    clock.jump(90_000)
    await publish(bus, "m2")
    assert await taken_ids(subscription) == ["m2"]
    assert await dead.purge(10, died_before=start, until=start) == 0
    clock.jump(-90_000)
    assert not await bus.publish(message("m1"))
    await publish(bus, "m3")
    assert await taken_ids(subscription, 2) == ["m1", "m3"]


async def test_an_expired_message_that_was_left_out_is_purged(
    bus: Bus, storages: list[Storage], clock: ManualClock
) -> None:
    end = clock.now().timestamp() + 10
    assert await bus.publish(message("m1", expires_at=end))
    clock.advance(10)
    await publish(bus, "m2")
    assert await taken_ids(subscribed(bus)) == ["m2"]
    assert [await storages[0].port(DeadLetters).purge(10, died_before=0, until=end) for _ in range(2)] == [1, 0]


async def test_a_thousand_expired_messages_do_not_keep_others_waiting(bus: Bus, other: Bus, clock: ManualClock) -> None:
    at = clock.now().timestamp() + 10
    await asyncio.gather(*(bus.publish(message(f"m{number}", expires_at=at)) for number in range(1100)))
    await publish(bus, "last")
    clock.advance(10)
    assert await taken_ids(subscribed(other)) == ["last"]


# The end of a storage.


async def test_messages_outlive_the_storage_that_published_or_held_them(engine: str, tmp_path: Path) -> None:
    async with opened_storages(engine, tmp_path, count=2) as [storage, _]:
        await publish(storage.port(Bus), "m1", "m2")
        (late,) = await taken(subscribed(storage.port(Bus)))
    async with opened_storages(engine, tmp_path) as [storage]:
        bus = storage.port(Bus)
        first, second = await taken(subscribed(bus), 2)
        assert [first.message.id, first.attempt, second.message.id, second.attempt] == ["m1", 1, "m2", 1]
        assert not await bus.ack(late)


async def test_the_end_of_a_storage_ends_every_wait(storages: list[Storage]) -> None:
    waiting = [asyncio.create_task(subscribed(each.port(Bus)).take()) for each in storages for _ in range(3)]
    await let_others_run()
    for storage in storages:
        await storage.close()
    async with asyncio.timeout(PATIENCE):
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(end) for end in ends} == {StorageClosed}
    with pytest.raises(StorageClosed):
        subscribed(storages[0].port(Bus))


@pytest.mark.slow
async def test_a_message_goes_to_another_subscription_when_the_event_loop_of_its_own_has_ended(
    bus: Bus, other: Bus, clock: ManualClock
) -> None:
    async def take_and_leave() -> None:
        await taken(subscribed(bus, ack_seconds=0.01))

    await publish(bus, "m1")
    await asyncio.to_thread(asyncio.run, take_and_leave())
    waiting = asyncio.create_task(taken(subscribed(other)))

    def has_come() -> bool:
        clock.advance(1)
        return waiting.done()

    await until(has_come)
    assert [(each.message.id, each.attempt) for each in await waiting] == [("m1", 2)]
