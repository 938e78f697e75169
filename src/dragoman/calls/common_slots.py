"""Slots that all processes of a server share, beside those that each process counts by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from dragoman.calls.places import Full, Holder, Release
from dragoman.clock import Clock, sleep

LOOK_EVERY: Final = 0.05
"""Seconds after which somebody who waits looks again: no process tells the others what it gives back."""

TakeCommon: TypeAlias = Callable[[str, int, Holder | None], Release | Full]
"""As `CommonSlots.take`."""


class CommonSlots(Protocol):
    """Gives slots out, by name. What a process holds is free when it has ended, however it ended."""

    def take(self, name: str, limit: int, holder: Holder | None) -> Release | Full:
        """A function that gives a slot back, which is called once, or why there is none.

        All processes together hold at most `limit`, and of these a holder has its share, as `Places` says.
        """
        ...


class Alone:
    """For a server of one process, which has counted already. Implements `CommonSlots`."""

    def take(self, name: str, limit: int, holder: Holder | None) -> Release | Full:
        return _nothing


async def when_free(take: TakeCommon, name: str, limit: int, holder: Holder | None, clock: Clock) -> Release:
    """Wait for a slot, and take it."""
    while isinstance(taken := take(name, limit, holder), Full):
        await sleep(clock, LOOK_EVERY)
    return taken


def _nothing() -> None:
    pass
