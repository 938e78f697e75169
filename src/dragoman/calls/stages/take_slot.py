"""Steps 6 and 9: a slot is taken at once or the call is refused, and it is held until the handler has really ended."""

from __future__ import annotations

from collections.abc import Awaitable, Hashable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.calls.resources import Resources
from dragoman.config import LimitsConfig, ResourcesConfig
from dragoman.errors import NoFreeSlot


@dataclass(frozen=True)
class TakeSlot:
    """Never waits: a queue would only hide that the server is full. A caller, or a tool, may have fewer than all."""

    resources: Resources
    config: ResourcesConfig
    limits: LimitsConfig

    def __call__(self, proceed: Service, /) -> Service:
        resources = self.resources

        def take_slot(call: Call) -> Awaitable[Any]:
            if call.tool.is_reserved:
                resources.take_reserved()
                call.undo.append(give_back_reserved)
            else:
                if resources.in_use >= resources.limit:
                    raise NoFreeSlot(resources.limit)
                resources.in_use += 1
                call.undo.append(give_back)
            return proceed(call)

        def give_back(call: Call) -> None:
            resources.in_use -= 1
            if resources.waiting:
                resources.wake_next()

        def give_back_reserved(call: Call) -> None:
            resources.give_back_reserved()

        return self._share(take_slot)

    def _share(self, take_slot: Service) -> Service:
        """The service that sees to it that nobody has more than their share, if shares are set."""
        per_caller = self.config.max_concurrent_per_caller
        per_tool = {
            name: own.max_concurrent for name, own in self.limits.tools.items() if own.max_concurrent is not None
        }
        if per_caller is None and not per_tool:
            return take_slot
        held: dict[Hashable, int] = {}

        def take_share(call: Call) -> Awaitable[Any]:
            if not call.tool.is_reserved:
                if call.name in per_tool:
                    hold(call.name, per_tool[call.name], f" for {call.name}")
                    call.undo.append(let_go_of_tool)
                if per_caller is not None:
                    hold(call.caller, per_caller, " of this caller")
                    call.undo.append(let_go_of_caller)
            return take_slot(call)

        def hold(key: Hashable, limit: int, whose: str) -> None:
            if held.get(key, 0) >= limit:
                raise NoFreeSlot(limit, whose)
            held[key] = held.get(key, 0) + 1

        def let_go(key: Hashable) -> None:
            held[key] -= 1
            if held[key] == 0:
                del held[key]

        def let_go_of_tool(call: Call) -> None:
            let_go(call.name)

        def let_go_of_caller(call: Call) -> None:
            let_go(call.caller)

        return take_share
