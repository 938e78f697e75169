"""Step 6, for tools whose slots are the server's and not the process's: one of them is held until the handler ends."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.calls.common_slots import TakeCommon, when_free
from dragoman.calls.patience import Patience
from dragoman.calls.places import Full, Release
from dragoman.calls.shares import Shares
from dragoman.clock import Clock
from dragoman.errors import NoFreeSlot


@dataclass(frozen=True)
class TakeCommonSlot:
    """Takes a slot that all processes of the server share, or refuses; calls that wait for slots wait."""

    name: str
    limit: int
    take: TakeCommon
    shares: Shares
    patience: Patience
    clock: Clock

    def __call__(self, proceed: Service, /) -> Service:
        def take_slot(call: Call) -> Awaitable[Any]:
            taken = self.take(self.name, self.limit, self.shares.holder_of(call))
            if not isinstance(taken, Full):
                return go_on(call, taken)
            if call.origin.waits_for_slot:
                return wait(call)
            raise NoFreeSlot(taken.taken, taken.whose, self.shares.slots.setting)

        async def wait(call: Call) -> Any:
            return await go_on(call, await self._wait(call))

        def go_on(call: Call, release: Release) -> Awaitable[Any]:
            call.undo.append(partial(_give_back, release))
            return proceed(call)

        return take_slot

    async def _wait(self, call: Call) -> Release:
        holder, taken = self.shares.holder_of(call), list[Release]()

        async def take() -> None:
            taken.append(await when_free(self.take, self.name, self.limit, holder, self.clock))

        try:
            await self.patience.wait(call, take())
        except BaseException as error:
            for release in taken:
                release()
            if isinstance(error, TimeoutError):
                raise NoFreeSlot(self.limit, setting=self.shares.slots.setting) from None
            raise
        return taken.pop()


def _give_back(release: Release, call: Call) -> None:
    release()
