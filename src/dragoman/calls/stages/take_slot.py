"""Steps 6 and 9: a slot is taken at once or the call is refused, and it is held until the handler has really ended."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.calls.shares import Shares
from dragoman.calls.slots import Slots
from dragoman.errors import NoFreeSlot


@dataclass(frozen=True)
class TakeSlot:
    """Never waits: a queue would only hide that the server is full. A caller, or a tool, may have fewer than all."""

    slots: Slots
    shares: Shares

    def __call__(self, proceed: Service, /) -> Service:
        slots, shares = self.slots, self.shares

        def take_slot(call: Call) -> Awaitable[Any]:
            if call.tool.is_reserved:
                slots.take_reserved()
                call.undo.append(give_back_reserved)
            else:
                if slots.in_use >= slots.limit:
                    raise NoFreeSlot(slots.limit)
                slots.in_use += 1
                call.undo.append(give_back)
            return proceed(call)

        def give_back(call: Call) -> None:
            slots.in_use -= 1
            if slots.waiting:
                slots.wake_next()

        def give_back_reserved(call: Call) -> None:
            slots.give_back_reserved()

        if not shares.are_set:
            return take_slot

        def take_share(call: Call) -> Awaitable[Any]:
            if not call.tool.is_reserved:
                shares.take(call)
            return take_slot(call)

        return take_share
