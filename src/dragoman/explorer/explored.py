"""What the explorer is given of the runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Stage
from dragoman.clock import Clock
from dragoman.edge.connection import Services
from dragoman.explorer.settings import ExplorerConfig


@dataclass(frozen=True)
class Explored:
    """What the page shows, and what it runs tools with."""

    settings: ExplorerConfig
    max_response_bytes: int
    services: Services
    stages: tuple[Stage, ...]
    clock: Clock
    state: Callable[[], str]
    under_way: Callable[[], int]
    """How many calls have not ended."""
    health: Callable[[], dict[str, Any]]
