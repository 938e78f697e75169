"""Storages whose `PurgeClock` believes the wall clock at once, for tests of what is purged rather than when."""

from __future__ import annotations

from typing import Any

from dragoman.clock import Clock
from dragoman.storage.port import PurgeClock, Storage


class PromptPurgeClock:
    """Implements `PurgeClock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def now(self) -> float:
        return self._clock.now().timestamp()


class PromptStorage:
    """The ports of a storage, with such a clock."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._purge_clock = PromptPurgeClock(clock)

    def port(self, kind: Any) -> Any:
        return self._purge_clock if kind is PurgeClock else self._storage.port(kind)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


async def let_pass(purge_clock: PurgeClock, clock: Any, seconds: float) -> None:
    """Let so much time pass on every clock, and then two hours, in which the purge clock comes to see it."""
    await purge_clock.now()
    clock.skip(seconds)
    for _ in range(2):
        await purge_clock.now()
        clock.skip(3600)
    await purge_clock.now()
