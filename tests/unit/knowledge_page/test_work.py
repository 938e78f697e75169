"""Whose turn it is to have a page made, and how long its place is held."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dragoman.calls.places import Holder
from dragoman.errors import Aborted
from dragoman.knowledge_page.work import Work, Workshop
from dragoman.tools.context import Cancellation
from tests.support.waiting import PATIENCE

ACME, OTHER = Holder("acme", "ada"), Holder("other", "ben")


class Endless:
    """Work on a thread that goes on until nobody waits for it, and then for as long as `last_step` is not set."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.last_step = threading.Event()

    def __call__(self, work: Work) -> None:
        self.has_begun.set()
        try:
            while work.spend(0):
                pass
        finally:
            self.last_step.wait(PATIENCE)


async def made(workshop: Workshop, holder: Holder) -> int:
    async with asyncio.timeout(PATIENCE), workshop.turn(holder) as run:
        return await run(5, lambda work: 5)


async def test_a_page_whose_client_has_left_stops_and_holds_its_place_until_it_has() -> None:
    workshop, endless = Workshop(), Endless()

    async def make() -> None:
        async with workshop.turn(ACME) as run:
            await run(1, endless)

    making = asyncio.create_task(make())
    await asyncio.to_thread(endless.has_begun.wait, PATIENCE)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    behind = asyncio.create_task(made(workshop, ACME))
    for _ in range(3):
        assert await made(workshop, OTHER) == 5  # Another tenant has its place at any time.
    assert not behind.done()
    endless.last_step.set()
    assert await behind == 5


async def test_a_client_that_leaves_before_its_turn_has_nothing_made() -> None:
    workshop = Workshop()
    async with workshop.turn(ACME) as run:
        waiting = asyncio.create_task(made(workshop, ACME))
        await asyncio.sleep(0)
        waiting.cancel()
        assert await run(1, lambda work: work.spend()) is True
    assert await made(workshop, ACME) == 5
    assert waiting.cancelled()


def test_more_steps_than_are_left_are_not_spent() -> None:
    cancellation = Cancellation()
    work = Work(3, cancellation)
    assert [work.spend(each) for each in (2, 2, 1, 1)] == [True, False, True, False]
    cancellation.set("disconnect")
    with pytest.raises(Aborted):
        work.spend(0)
