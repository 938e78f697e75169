"""The `AACPRecords` of a process that keeps nothing."""

from __future__ import annotations

from dragoman.agents.aacp.memory import InMemoryAACPPersistenceAdapter
from dragoman.agents.aacp.records import DEFAULT_TTL_MS, AACPPersistenceAdapter
from dragoman.clock import Clock


class DictAACPRecords:
    """Implements `AACPRecords`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._adapters: dict[str, AACPPersistenceAdapter] = {}

    def for_agent(self, agent_id: str, default_ttl_ms: int = DEFAULT_TTL_MS) -> AACPPersistenceAdapter:
        return self._adapters.setdefault(agent_id, InMemoryAACPPersistenceAdapter(self._clock, default_ttl_ms))
