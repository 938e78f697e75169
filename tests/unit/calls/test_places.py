"""Places that tenants share: how many one of them gets, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.calls.places import AwaitedPlaces, Full, Holder, Places
from tests.support.waiting import PATIENCE

HOLDERS = st.builds(Holder, st.sampled_from(["a", "b", "c"]), st.sampled_from(["1", "2"]))


def taken(places: Places, *holders: Holder) -> int:
    """How many places these get, who ask in turn until none gets one any longer."""
    count = 0
    while any(map(places.has_room, holders)):
        for holder in holders:
            if places.has_room(holder):
                places.hold(holder)
                count += 1
    return count


def keys_of(tenant: str, count: int) -> list[Holder]:
    return [Holder(tenant, str(number)) for number in range(count)]


@pytest.mark.parametrize(
    ("limit", "of_key", "of_tenant", "of_two"),
    [(1, 1, 1, (1, 0)), (2, 1, 1, (1, 1)), (3, 1, 2, (1, 1)), (5, 3, 4, (2, 2)), (10, 7, 8, (5, 5))],
)
def test_a_tenant_gets_half_or_what_leaves_a_fifth_for_others_and_a_key_the_same_of_that(
    limit: int, of_key: int, of_tenant: int, of_two: tuple[int, int]
) -> None:
    assert taken(Places(limit), Holder("a", "1")) == of_key
    assert taken(Places(limit), Holder("a")) == of_tenant
    assert taken(places := Places(limit), *keys_of("a", limit)) == of_tenant
    assert taken(places, *keys_of("b", limit)) == limit - of_tenant  # The last ones are for whoever comes then.
    together = [each for pair in zip(keys_of("a", limit), keys_of("b", limit), strict=True) for each in pair]
    taken(places := Places(limit), *together)
    assert (places.held_by("a"), places.held_by("b")) == of_two


@given(st.integers(2, 30), st.lists(HOLDERS, max_size=60))
def test_one_tenant_alone_never_keeps_another_one_out(limit: int, wanted: list[Holder]) -> None:
    places, held = Places(limit), Counter[str]()
    for holder in wanted:
        if places.has_room(holder):
            places.hold(holder)
            held[holder.tenant] += 1
        elif held[holder.tenant] == 0:
            assert places.in_use == limit
        assert held.total() == places.in_use <= limit
        assert max(held.values()) <= limit - max(1, limit // 5)
    if len(held) < 2:
        assert places.has_room(Holder("d"))


@given(st.integers(3, 30), st.booleans())
def test_one_key_leaves_a_place_for_another_one_of_its_tenant(limit: int, is_shared: bool) -> None:
    places = Places(limit)
    if is_shared:
        taken(places, *keys_of("b", limit))
    left = taken(places, Holder("a", "1"))
    assert places.has_room(Holder("a", "2")) or left == 1


def test_the_server_s_own_work_has_no_share_and_takes_what_is_free() -> None:
    places = Places(4)
    assert taken(places, Holder("a", "1")) == 2
    assert places.full(Holder("a", "1")) == Full(2, " of this caller")
    assert taken(places, *keys_of("a", 4)) == 1
    assert places.full(Holder("a", "4")) == Full(3, " of this tenant")
    assert places.has_room()
    places.hold()
    assert places.full() == places.full(Holder("b")) == Full(4)
    places.let_go()
    places.let_go(Holder("a", "1"))
    assert places.in_use == 2
    assert places.full(Holder("a", "9")) is None


async def test_those_who_wait_are_served_in_turn_over_tenants_and_then_over_keys() -> None:
    places, served = AwaitedPlaces(1), list[str]()
    release = await places.acquire(Holder("z"))

    async def wait(tenant: str, key: str) -> None:
        done = await places.acquire(Holder(tenant, key))
        served.append(f"{tenant}{key}")
        done()

    order = ["a1", "a1", "a1", "a2", "b1", "a2", "b1", "c1"]
    waiting = [asyncio.ensure_future(wait(*each)) for each in order]
    await asyncio.sleep(0)
    release()
    release()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*waiting)
    assert served == ["a1", "b1", "c1", "a2", "b1", "a1", "a2", "a1"]
    assert places.in_use == 0


async def test_a_tenant_that_may_have_no_more_does_not_keep_others_from_their_turn() -> None:
    places = AwaitedPlaces(2)
    held = await places.acquire(Holder("a"))
    again = asyncio.ensure_future(places.acquire(Holder("a")))
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        other = await places.acquire(Holder("b"))
        behind = asyncio.ensure_future(places.acquire(Holder("b")))
        await asyncio.sleep(0)
        assert not again.done()
        other()  # Of the two, `b` alone may have it.
        done = await behind
        held()
        (await again)()
        done()
    assert places.in_use == 0


async def test_a_place_that_is_given_back_makes_room_for_two_holders_of_different_shares() -> None:
    """By the rule of the half for one, and by that of the fifth for the other."""
    places, (first, second) = AwaitedPlaces(5), (Holder("a"), Holder("b"))
    held = [places.take(holder) for holder in (first, first, second, second)]
    waiting = [asyncio.ensure_future(places.acquire(holder)) for holder in (second, first)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in waiting)
    held[0]()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*waiting)
