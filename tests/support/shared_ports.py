"""Ports in memory that several servers of a test share, as if each were another process's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any


class SharedPort:
    """A `Ledger` or `Runs` that counts what it is asked for, and how many wait for other processes."""

    def __init__(self, port: Any) -> None:
        self._port = port
        self.asked: Counter[str] = Counter()
        self.eager: set[object] = set()
        self._changed: list[Callable[[], None]] = []
        self._lost: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(self._port, name)

    def watch(
        self,
        changed: Callable[[], None],
        lost: Callable[[], None],
        lease_seconds: float,
        is_alive: Callable[[], bool],
    ) -> None:
        self._changed.append(changed)
        self._lost.append(lost)

    def look_often(self) -> Callable[[], None]:
        waiting = object()
        self.eager.add(waiting)
        return lambda: self.eager.discard(waiting)

    def tell_changed(self) -> None:
        """Another process has changed something."""
        for changed in self._changed:
            changed()

    def tell_lost(self) -> None:
        """Another process has ended."""
        for lost in self._lost:
            lost()


class HeldElsewhere(SharedPort):
    """A `Ledger` whose agents another process holds."""

    async def hold(self, agent: str) -> None:
        self.asked["hold"] += 1
