"""How many of the slots one caller, one tool, or one tenant may hold at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dragoman.access.quota import Quota
from dragoman.calls.call import Call
from dragoman.calls.places import Holder
from dragoman.calls.settings import LimitsConfig, ResourcesConfig
from dragoman.calls.slots import Slots
from dragoman.errors import NoFreeSlot
from dragoman.sections import join

HolderOf: TypeAlias = Callable[[Call], Holder]


class Shares:
    """Takes slots for calls, each of which may have a share of them only."""

    def __init__(
        self, slots: Slots, resources: ResourcesConfig, limits: LimitsConfig, holder_of: HolderOf | None = None
    ) -> None:
        """With `holder_of`, tenants share the slots as `Places` says."""
        self.slots = slots
        most = resources.max_concurrent_per_caller
        self._per_caller = None if most is None else Quota(most)
        self._per_tool = {
            name: Quota(own.max_concurrent) for name, own in limits.tools.items() if own.max_concurrent is not None
        }
        self._holder_of = holder_of

    @property
    def are_set(self) -> bool:
        return self._per_caller is not None or bool(self._per_tool) or self._holder_of is not None

    def holder_of(self, call: Call) -> Holder | None:
        """The tenant whose share of the slots a call takes, if tenants share them."""
        return None if self._holder_of is None else self._holder_of(call)

    def take(self, call: Call) -> None:
        """Take a slot, and a part of what the call's tool, caller and tenant may hold, given back through `call.undo`.

        Raises `NoFreeSlot`, and takes nothing then.
        """
        quota, per_caller = self._per_tool.get(call.name), self._per_caller
        if quota is not None and not quota.take(call.name):
            setting = join(join("limits.tools", call.name), "max_concurrent")
            raise NoFreeSlot(quota.most, f" for {call.name!r}", setting)
        if per_caller is not None and not per_caller.take(call.origin.caller.principal):
            if quota is not None:
                quota.give_back(call.name)
            raise NoFreeSlot(per_caller.most, " of this caller", "resources.max_concurrent_per_caller")
        holder = self.holder_of(call)
        full = self.slots.full(holder)
        if full is not None:
            self._give_back_quotas(call)
            raise NoFreeSlot(*full)
        self.slots.hold(holder)
        call.undo.append(self.give_back)

    def give_back(self, call: Call) -> None:
        """Give back what `take` took for the call."""
        self._give_back_quotas(call)
        self.slots.give_back_of(self.holder_of(call))

    def _give_back_quotas(self, call: Call) -> None:
        quota = self._per_tool.get(call.name)
        if quota is not None:
            quota.give_back(call.name)
        if self._per_caller is not None:
            self._per_caller.give_back(call.origin.caller.principal)
