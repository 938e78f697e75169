"""Whether an event loop still turns, as another thread sees it."""

from __future__ import annotations

import asyncio

from dragoman.agents.pulse import LoopPulse
from dragoman.testing import ManualClock


async def test_a_loop_that_turns_is_alive_however_seldom_it_is_asked() -> None:
    clock = ManualClock()
    pulse = LoopPulse(clock, 1.0)
    for _ in range(3):
        assert pulse.is_alive()
        await asyncio.sleep(0)
        clock.advance(3600)


async def test_a_loop_that_is_blocked_is_alive_for_as_long_as_it_is_given() -> None:
    clock = ManualClock()
    pulse = LoopPulse(clock, 10.0)
    found = []
    for _ in range(4):  # The loop has no turn meanwhile.
        found.append(pulse.is_alive())
        clock.advance(4)
    assert found == [True, True, True, False]
    await asyncio.sleep(0)
    assert pulse.is_alive()


def test_a_loop_that_is_closed_is_not_alive() -> None:
    async def make() -> LoopPulse:
        return LoopPulse(ManualClock(), 10.0)

    assert not asyncio.run(make()).is_alive()
