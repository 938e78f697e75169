"""How many of the slots one caller, or one tool, may hold at a time."""

from __future__ import annotations

from dragoman.access.quota import Quota
from dragoman.calls.call import Call
from dragoman.calls.settings import LimitsConfig, ResourcesConfig
from dragoman.errors import NoFreeSlot


class Shares:
    """Slots held, by caller and by tool; only those that hold some are known."""

    def __init__(self, resources: ResourcesConfig, limits: LimitsConfig) -> None:
        most = resources.max_concurrent_per_caller
        self._per_caller = None if most is None else Quota(most)
        self._per_tool = {
            name: Quota(own.max_concurrent) for name, own in limits.tools.items() if own.max_concurrent is not None
        }

    @property
    def are_set(self) -> bool:
        return self._per_caller is not None or bool(self._per_tool)

    def take(self, call: Call) -> None:
        """Take a part of what the call's tool and caller may hold, given back through `call.undo`."""
        quota = self._per_tool.get(call.name)
        if quota is not None and not quota.take(call.name):
            raise NoFreeSlot(quota.most, f" for {call.name!r}")
        if self._per_caller is not None and not self._per_caller.take(call.origin.caller.principal):
            if quota is not None:
                quota.give_back(call.name)
            raise NoFreeSlot(self._per_caller.most, " of this caller")
        call.undo.append(self.give_back)

    def give_back(self, call: Call) -> None:
        """Give back what `take` took for the call."""
        quota = self._per_tool.get(call.name)
        if quota is not None:
            quota.give_back(call.name)
        if self._per_caller is not None:
            self._per_caller.give_back(call.origin.caller.principal)
