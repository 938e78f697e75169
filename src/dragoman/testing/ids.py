"""Ids that can be foreseen."""

from __future__ import annotations

from itertools import count


class SequentialIds:
    """`run-1`, `run-2`, …; `corr-1`, …; `conn-1`, …"""

    def __init__(self) -> None:
        self._runs = count(1)
        self._correlations = count(1)
        self._connections = count(1)

    def run_id(self) -> str:
        return f"run-{next(self._runs)}"

    def correlation_id(self) -> str:
        return f"corr-{next(self._correlations)}"

    def connection_correlation_id(self) -> str:
        return f"conn-{next(self._connections)}"
