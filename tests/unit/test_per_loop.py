"""What is opened once for each event loop, and ends with it."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.per_loop import PerLoop


class Thing:
    """Something that is opened and closed, with a name of its own so that it can own another one."""

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.ended = ""
        self.is_busy = False


async def _open(owner: object) -> Thing:
    if owner is None:
        raise TypeError("nobody")
    return Thing(owner)


async def _close(thing: Thing) -> None:
    await asyncio.sleep(0)
    thing.ended = "closed"


def _abandon(thing: Thing) -> None:
    thing.ended = "abandoned"


@pytest.fixture
def things() -> PerLoop[object, Thing]:
    return PerLoop(_open, _close, is_busy=lambda thing: thing.is_busy, abandon=_abandon, most=2)


async def test_an_owner_gets_the_same_thing_again(things: PerLoop[object, Thing]) -> None:
    owner, other = object(), object()
    first = await things.get(owner)
    assert first.owner is owner
    assert await things.get(owner) is first
    assert await things.get(other) is not first
    assert len(things) == 2


async def test_the_oldest_that_is_not_busy_makes_room(things: PerLoop[object, Thing]) -> None:
    busy, idle = await things.get(busy_owner := object()), await things.get(object())
    busy.is_busy = True
    await asyncio.gather(*(things.get(object()) for _ in range(3)))
    assert (busy.ended, idle.ended) == ("", "closed")
    assert await things.get(busy_owner) is busy
    busy.is_busy = False
    last = await things.get(object())
    assert busy.ended == "closed"
    assert last.ended == ""


async def test_where_all_are_busy_there_are_more(things: PerLoop[object, Thing]) -> None:
    for _ in range(5):
        (await things.get(object())).is_busy = True
    assert len(things) == 5


async def test_what_cannot_be_opened_leaves_nothing(things: PerLoop[object, Thing]) -> None:
    with pytest.raises(TypeError, match="nobody"):
        await things.get(None)
    assert len(things) == 0


def test_things_end_with_the_loop_that_they_were_opened_in(things: PerLoop[object, Thing]) -> None:
    owner = object()
    first, second = asyncio.run(things.get(owner)), asyncio.run(things.get(owner))
    assert first is not second
    assert (first.ended, second.ended, len(things)) == ("closed", "closed", 0)


def test_what_is_left_of_a_loop_that_was_just_closed_is_abandoned(things: PerLoop[object, Thing]) -> None:
    loop = asyncio.new_event_loop()
    left = loop.run_until_complete(things.get(object()))
    loop.close()
    asyncio.run(things.get(object()))
    assert (left.ended, len(things)) == ("abandoned", 0)
