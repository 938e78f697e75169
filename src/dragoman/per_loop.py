"""What is opened once for each event loop, and ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

Owner = TypeVar("Owner")
Value = TypeVar("Value")


class _Kept(NamedTuple):
    loop: asyncio.AbstractEventLoop
    owner: Any
    keeper: AsyncGenerator[Any, None]
    value: Any


class PerLoop(Generic[Owner, Value]):
    """A value for each event loop and owner, opened when it is first asked for.

    It is closed when the loop ends in order, as `asyncio.run` ends it. Of more than `most` in a loop, the oldest that
    are not busy are closed when another one is opened. A loop that was closed without an end can run nothing any
    longer: what is left of it is abandoned then. `open` must not let others run before the value can be used.
    """

    def __init__(
        self,
        open: Callable[[Owner], Awaitable[Value]],
        close: Callable[[Value], Awaitable[Any]],
        *,
        is_busy: Callable[[Value], bool],
        abandon: Callable[[Value], None],
        most: int,
    ) -> None:
        self._open = open
        self._close = close
        self._is_busy = is_busy
        self._abandon = abandon
        self._most = most
        # By the ids of loop and owner, which cannot be another's as long as both are kept.
        self._kept: dict[tuple[int, int], _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, owner: Owner) -> Value:
        """The owner's value in the running loop. Raises what opening it raises."""
        loop = asyncio.get_running_loop()
        place = (id(loop), id(owner))
        if place not in self._kept:
            await self._make_room(loop)
        if place not in self._kept:  # Still.
            keeper = self._keep(place, owner)
            self._kept[place] = _Kept(loop, owner, keeper, await anext(keeper))
        value: Value = self._kept[place].value
        return value

    async def _keep(self, place: tuple[int, int], owner: Owner) -> AsyncGenerator[Value, None]:
        """A generator, because those are what an event loop closes when it ends."""
        value = await self._open(owner)
        try:
            yield value
        finally:
            self._kept.pop(place, None)
            await self._close(value)

    async def _make_room(self, loop: asyncio.AbstractEventLoop) -> None:
        for place, kept in list(self._kept.items()):
            if kept.loop.is_closed():
                self._abandon(self._kept.pop(place).value)
        while len(here := [kept for kept in self._kept.values() if kept.loop is loop]) >= self._most:
            idle = next((kept for kept in here if not self._is_busy(kept.value)), None)
            if idle is None:
                break
            await idle.keeper.aclose()  # Others may make room at the same time: look again.
