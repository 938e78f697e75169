"""How many of the slots one caller, or one tool, may hold at a time."""

from __future__ import annotations

from dragoman.calls.call import Call
from dragoman.config import LimitsConfig, ResourcesConfig
from dragoman.errors import NoFreeSlot


class Shares:
    """Slots held, by caller and by tool; only those that hold some are known."""

    def __init__(self, resources: ResourcesConfig, limits: LimitsConfig) -> None:
        self._per_caller = resources.max_concurrent_per_caller
        self._per_tool = {
            name: own.max_concurrent for name, own in limits.tools.items() if own.max_concurrent is not None
        }
        self._by_caller: dict[str, int] = {}
        self._by_tool: dict[str, int] = {}

    @property
    def are_set(self) -> bool:
        return self._per_caller is not None or bool(self._per_tool)

    def take(self, call: Call) -> None:
        """Take a part of what the call's tool and caller may hold, given back through `call.undo`."""
        most = self._per_tool.get(call.name)
        if most is not None:
            _hold(self._by_tool, call.name, most, f" for {call.name!r}")
            call.undo.append(self._let_go_of_tool)
        if self._per_caller is not None:
            _hold(self._by_caller, call.caller.principal, self._per_caller, " of this caller")
            call.undo.append(self._let_go_of_caller)

    def _let_go_of_tool(self, call: Call) -> None:
        _let_go(self._by_tool, call.name)

    def _let_go_of_caller(self, call: Call) -> None:
        _let_go(self._by_caller, call.caller.principal)


def _hold(held: dict[str, int], key: str, most: int, whose: str) -> None:
    if held.get(key, 0) >= most:
        raise NoFreeSlot(most, whose)
    held[key] = held.get(key, 0) + 1


def _let_go(held: dict[str, int], key: str) -> None:
    held[key] -= 1
    if held[key] == 0:
        del held[key]
