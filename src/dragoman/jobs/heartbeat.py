"""The heartbeat: tells the registry how this process and its agents are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from dragoman.clock import Clock
from dragoman.jobs.port import Registry, RegistryEntry, Standing
from dragoman.storage.port import PurgeClock

EVERY_SECONDS: Final = 300.0
FORGET_EVERY_SECONDS: Final = 3_600.0
FORGOTTEN_AFTER: Final = 86_400.0
"""Seconds without a heartbeat after which an entry is forgotten."""
_MOST_AT_ONCE = 500


class Heartbeat:
    """Of one process. `health` is the report of the tool `health`.

    `agents` gives the agents that this process holds, and whether each of them works.
    """

    def __init__(
        self,
        registry: Registry,
        process: Callable[[], str],
        health: Callable[[], dict[str, Any]],
        agents: Callable[[], Iterable[tuple[str, bool]]],
        clock: Clock,
        purge_clock: PurgeClock,
        space: str,
    ) -> None:
        self._registry = registry
        self._process = process
        self._health = health
        self._agents = agents
        self._clock = clock
        self._purge_clock = purge_clock
        self._space = space
        self._own: RegistryEntry | None = None

    async def beat(self) -> dict[str, Any]:
        """Tell the registry. An agent is degraded if it does not work, or if its process is degraded."""
        health, now = self._health(), self._clock.now().timestamp()
        is_healthy = health["status"] == "healthy"
        self._own = RegistryEntry(
            kind="process",
            name=self._process(),
            status=_standing(is_healthy),
            last_seen_at=now,
            space=self._space,
            details={**health["server"], "pid": os.getpid()},
        )
        agents = [
            RegistryEntry(
                kind="agent",
                name=name,
                status=_standing(is_healthy and works),
                last_seen_at=now,
                space=self._space,
                details={"process": self._own.name},
            )
            for name, works in self._agents()
        ]
        entries = iter((self._own, *agents))
        while some := tuple(islice(entries, _MOST_AT_ONCE)):  # Other writers wait for each step.
            await self._registry.beat(some)
        degraded = sum(each.status == "degraded" for each in agents)
        return {"status": self._own.status, "agents": len(agents), "degradedAgents": degraded}

    async def leave(self) -> None:
        """Remove the entry of this process, which stops. Those of its agents stay: another process may hold them."""
        if self._own is not None:
            await self._registry.remove(self._own)

    async def forget(self) -> dict[str, Any]:
        """Forget everything that has not been seen for long."""
        before, forgotten = await self._purge_clock.now() - FORGOTTEN_AFTER, 0
        while done := await self._registry.forget(before, _MOST_AT_ONCE):
            forgotten += done
        return {"forgotten": forgotten}


def _standing(is_healthy: bool) -> Standing:
    return "healthy" if is_healthy else "degraded"
