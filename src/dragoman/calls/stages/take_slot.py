"""Steps 6 and 9: a slot is taken, or the call is refused, and it is held until the handler has really ended."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.calls.patience import Patience
from dragoman.calls.places import Release
from dragoman.calls.shares import Shares
from dragoman.calls.slots import Slots
from dragoman.errors import NoFreeSlot


@dataclass(frozen=True)
class TakeSlot:
    """Takes a slot at once or refuses: a queue would only hide that the server is full.

    A caller, a tool or a tenant may have fewer slots than all. With `waits`, a call that finds no free slot waits for
    one, and so do calls whose origin says so.
    """

    slots: Slots
    shares: Shares
    patience: Patience
    waits: bool = False

    def __call__(self, proceed: Service, /) -> Service:
        slots, shares = self.slots, self.shares
        give_back, give_back_reserved = slots.give_back, slots.give_back_reserved

        def take_slot(call: Call) -> Awaitable[Any]:
            if call.tool.is_reserved:
                slots.take_reserved()
                call.undo.append(give_back_reserved)
            else:
                if slots.in_use >= slots.limit:
                    if call.origin.waits_for_slot:
                        return wait(call)
                    raise NoFreeSlot(slots.limit, setting=slots.setting)
                slots.in_use += 1
                call.undo.append(give_back)
            return proceed(call)

        def take_share(call: Call) -> Awaitable[Any]:
            if call.tool.is_reserved:
                return take_slot(call)
            if call.origin.waits_for_slot and not slots.has_room(shares.holder_of(call)):
                return wait(call)
            shares.take(call)
            return proceed(call)

        take = take_share if shares.are_set else take_slot

        async def wait(call: Call) -> Any:
            await self._wait_for_room(call)
            try:
                going_on = take(call)
            except NoFreeSlot:  # Its caller, or its tool, has too many.
                slots.wake_next()
                raise
            return await going_on

        def take_or_wait(call: Call) -> Awaitable[Any]:
            has_room = call.tool.is_reserved or slots.has_room(shares.holder_of(call))
            return take(call) if has_room else wait(call)

        return take_or_wait if self.waits else take

    def let_go(self, call: Call) -> None:
        """Give back early what the call would hold until its end."""
        for give_back in (self.slots.give_back, self.slots.give_back_reserved, self.shares.give_back):
            if give_back in call.undo:
                call.undo.remove(give_back)
                give_back(call)

    def taking_again(self) -> Service:
        """Takes a slot for a call that has let go of its own: it is not turned away, as a new one would be."""
        return replace(self, waits=True)(_go_on)

    async def _wait_for_room(self, call: Call) -> None:
        """Return when there is room for the call, which has to take it at once."""
        holder, held = self.shares.holder_of(call), list[Release]()

        async def room() -> None:
            held.append(await self.slots.acquire(holder))

        try:
            await self.patience.wait(call, room())
        except TimeoutError:
            raise NoFreeSlot(*(self.slots.full(holder) or (self.slots.limit, "", self.slots.setting))) from None
        except BaseException:
            for release in held:
                release()
            raise
        self.slots.let_go(holder)  # Nobody is woken: it is taken again before anybody else could.


async def _go_on(call: Call) -> None:
    """After the slot: whoever takes it again."""
