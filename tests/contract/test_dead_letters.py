"""The contract of `DeadLetters`, for every engine, also beside the process that gave the messages up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.errors import BusFull
from dragoman.messaging import bus as limits
from dragoman.messaging.bus import REMEMBERED_SECONDS, Bus, DeadLetter, DeadLetters
from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.contract.engines import SITES, opened_storages
from tests.support.bus_messages import ERROR, let_others_run, message, publish, subscribed, taken, taken_ids

LATER = 1e12


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=SITES, ids=str)
async def storages(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[list[Storage]]:
    engine, count = request.param
    async with opened_storages(engine, tmp_path, clock, count) as storages:
        yield storages


@pytest.fixture
def bus(storages: list[Storage]) -> Bus:
    return storages[0].port(Bus)


@pytest.fixture
def dead(storages: list[Storage]) -> DeadLetters:
    """As operators have them: in another process, where there is one."""
    return storages[-1].port(DeadLetters)


async def given_up(bus: Bus, *ids: str, subject: str = "jobs.a") -> list[int]:
    """The numbers of new dead letters."""
    await publish(bus, *ids, subject=subject)
    subscription = subscribed(bus, subject)
    deliveries = await taken(subscription, len(ids))
    for delivery in deliveries:
        assert await bus.give_up(delivery, ERROR)
    await subscription.close()
    return [delivery.number for delivery in deliveries]


def numbers(letters: list[DeadLetter]) -> list[int]:
    return [letter.number for letter in letters]


@pytest.mark.requirement("MC-TRANS-04")
async def test_a_given_up_message_is_kept_with_the_error_of_each_attempt(
    bus: Bus, dead: DeadLetters, clock: ManualClock
) -> None:
    sent, published_at = message(headers={"a": "b"}, expires_at=LATER), clock.now().timestamp()
    assert await bus.publish(sent)
    subscription = subscribed(bus)
    for error in (b'"first"', b'"second"'):
        (delivery,) = await taken(subscription)
        assert await bus.retry(delivery, 0.0, error)
    (delivery,) = await taken(subscription)
    assert (await dead.get(delivery.number), await dead.page(None, 10)) == (None, [])
    clock.advance(60)
    assert await bus.give_up(delivery, b'"third"')
    letter = DeadLetter(
        number=delivery.number,
        message=sent,
        published_at=published_at,
        died_at=published_at + 60,
        attempts=3,
        errors=(b'"first"', b'"second"', b'"third"'),
    )
    assert await dead.get(delivery.number) == letter
    assert await dead.page(None, 10) == [letter]


async def test_dead_letters_are_listed_in_order_by_pattern_by_age_and_in_pages(
    bus: Bus, dead: DeadLetters, clock: ManualClock
) -> None:
    ones = await given_up(bus, "m1", "m2", subject="jobs.a")
    between = clock.now().timestamp() + 5
    clock.advance(10)
    twos = await given_up(bus, "m3", subject="jobs.b")
    await given_up(bus, "m4", subject="jobs.b.c")
    assert numbers(await dead.page("jobs.*", 10)) == [*ones, *twos]
    assert numbers(await dead.page("jobs.b", 10)) == twos
    assert numbers(await dead.page("jobs", 10)) == []
    assert numbers(await dead.page(None, 10, died_before=between)) == ones
    assert numbers(await dead.page(None, 2, after=ones[0])) == [ones[1], *twos]
    assert len(await dead.page(None, 10)) == 4


@pytest.mark.requirement("MC-TRANS-04")
async def test_a_redriven_message_comes_behind_all_others_of_its_subject_as_if_it_were_new(
    bus: Bus, dead: DeadLetters, clock: ManualClock
) -> None:
    at = clock.now().timestamp()
    assert await bus.publish(message("m1", expires_at=at + 10, headers={"a": "1"}))
    subscription = subscribed(bus)
    (late,) = await taken(subscription)
    assert await bus.give_up(late, ERROR)
    clock.advance(100)
    await publish(bus, "m2")
    number = await dead.redrive(late.number)
    second, again = await taken(subscription, 2)
    assert (second.message.id, again.number) == ("m2", number)
    assert again.message == replace(late.message, expires_at=None)
    assert (again.published_at, again.attempt, again.errors) == (at, 1, ())
    assert again.fence > late.fence
    assert await dead.get(late.number) is None
    assert await dead.page(None, 10) == []
    assert not await bus.publish(message("m1"))
    assert not await bus.ack(late)
    assert await bus.ack(again)


async def test_a_redriven_message_has_the_headers_that_it_is_given(bus: Bus, dead: DeadLetters) -> None:
    (number,) = await given_up(bus, "m1")
    await dead.redrive(number, {"accepted": "anew"})
    (again,) = await taken(subscribed(bus))
    assert again.message == message("m1", headers={"accepted": "anew"})


async def test_a_redriven_message_wakes_a_subscription_that_waits(bus: Bus, dead: DeadLetters) -> None:
    (number,) = await given_up(bus, "m1")
    waiting = asyncio.create_task(taken_ids(subscribed(bus)))
    await let_others_run()
    await dead.redrive(number)
    assert await waiting == ["m1"]


async def test_only_a_dead_letter_can_be_redriven_and_only_once(bus: Bus, dead: DeadLetters) -> None:
    (number,) = await given_up(bus, "m1")
    await publish(bus, "m2")
    (held,) = await taken(subscribed(bus))
    assert await dead.redrive(number) is not None
    for each in (number, held.number, 10**9):
        assert await dead.redrive(each) is None


async def test_a_dead_letter_is_not_redriven_into_a_full_subject(
    bus: Bus, dead: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    (number,) = await given_up(bus, "m1")
    monkeypatch.setattr(limits, "MOST_MESSAGES", 1)
    await publish(bus, "m2")
    with pytest.raises(BusFull):
        await dead.redrive(number)
    assert numbers(await dead.page(None, 10)) == [number]
    (held,) = await taken(subscribed(bus))
    assert await bus.ack(held)
    assert await dead.redrive(number) is not None
    with pytest.raises(BusFull):
        await bus.publish(message("m3"))


async def test_old_dead_letters_are_purged_and_their_ids_remembered_for_two_days(
    bus: Bus, dead: DeadLetters, clock: ManualClock
) -> None:
    start = clock.now().timestamp()
    old = await given_up(bus, "m1", "m2")
    clock.advance(10)
    new = await given_up(bus, "m3")
    assert await dead.purge(10, died_before=start) == 0
    assert await dead.purge(1, died_before=start + 10) == 1
    assert await dead.purge(10, died_before=start + 10) == 1
    assert numbers(await dead.page(None, 10)) == new
    assert await dead.redrive(old[0]) is None
    assert not await bus.publish(message("m1"))
    clock.advance(REMEMBERED_SECONDS)
    assert await dead.purge(10, died_before=start, until=start) == 0
    assert await dead.purge(10, died_before=start + 11) == 3  # The last letter, and two ids.
    assert await dead.purge(10, died_before=LATER) == 0
    await publish(bus, "m1", "m2", "m3")


async def test_settled_and_expired_messages_are_purged_and_others_are_not(
    bus: Bus, dead: DeadLetters, clock: ManualClock
) -> None:
    now = clock.now().timestamp()
    for number in range(3):
        await publish(bus, f"done{number}")
    subscription = subscribed(bus)
    for delivery in await taken(subscription, 3):
        assert await bus.ack(delivery)
    assert await bus.publish(message("held", expires_at=now + 1))
    held = (await taken(subscription))[0]
    for number in range(3):
        assert await bus.publish(message(f"expired{number}", "other.a", expires_at=now + 1))
    await publish(bus, "waiting", subject="other.a")
    assert await dead.purge(100, died_before=LATER) == 0
    clock.advance(1)
    assert await dead.purge(2, died_before=LATER) == 2
    assert await dead.purge(100, died_before=LATER) == 1
    clock.advance(REMEMBERED_SECONDS)
    assert await dead.purge(100, died_before=LATER) == 3
    assert await bus.ack(held)
    assert await taken_ids(subscribed(bus, "other.a")) == ["waiting"]


async def test_the_id_of_a_settled_message_is_forgotten_by_a_purge_after_two_days_and_by_no_clock(
    bus: Bus, dead: DeadLetters, clock: ManualClock
) -> None:
    settled_at = clock.now().timestamp()
    subscription = subscribed(bus)
    await publish(bus, "m1")
    (delivery,) = await taken(subscription)
    assert await bus.ack(delivery)
    clock.jump(2 * REMEMBERED_SECONDS)
    assert await dead.purge(10, died_before=LATER, until=settled_at + REMEMBERED_SECONDS - 1) == 0
    assert not await bus.publish(message("m1"))
    assert await dead.purge(10, died_before=LATER, until=settled_at + REMEMBERED_SECONDS) == 1
    await publish(bus, "m1")
    (again,) = await taken(subscription)
    assert again.message.id == "m1"


@pytest.mark.parametrize(("name", "most"), [("MOST_DEAD", 2), ("MOST_DEAD_BYTES", 2 * len(b"m1{}"))])
async def test_of_too_many_or_too_large_dead_letters_of_a_subject_the_oldest_are_forgotten(
    bus: Bus, dead: DeadLetters, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    monkeypatch.setattr(f"dragoman.messaging.bus.{name}", most)
    await publish(bus, "m0", subject="jobs.b")
    await publish(bus, "m1", "m2", "m3", "m4")
    for subject, count in (("jobs.b", 1), ("jobs.a", 4)):
        for delivery in await taken(subscribed(bus, subject), count):
            assert await bus.give_up(delivery, ERROR)
    assert [each.message.id for each in await dead.page(None, 10)] == ["m0", "m3", "m4"]
