"""Steps 6 and 9: a slot is taken at once or the call is refused, and it is held until the handler has really ended."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.calls.resources import Resources


@dataclass(frozen=True)
class TakeSlot:
    """Never waits: a queue would only hide that the server is full."""

    resources: Resources

    def __call__(self, proceed: Service, /) -> Service:
        take, give_back = self.resources.take, self.resources.give_back

        def take_slot(call: Call) -> Awaitable[Any]:
            take(call.tool.is_reserved)
            call.undo.append(give_back_slot)
            return proceed(call)

        def give_back_slot(call: Call) -> None:
            give_back(call.tool.is_reserved)

        return take_slot
