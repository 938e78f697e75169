"""What the explorer is given of the runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Dialect, Stage
from dragoman.calls.intake import Intake
from dragoman.clock import Clock
from dragoman.explorer.settings import ExplorerConfig
from dragoman.ids import Ids
from dragoman.protocol.results import ToolResult
from dragoman.protocol.session import Identity
from dragoman.telemetry.log import Logger
from dragoman.tools.catalogue import Catalogue


@dataclass(frozen=True)
class Explored:
    """What the page shows, and what it runs tools with."""

    settings: ExplorerConfig
    max_response_bytes: int
    catalogue: Catalogue
    stages: tuple[Stage, ...]
    intake: Intake
    dialect: Dialect[ToolResult]
    identity: Identity
    clock: Clock
    ids: Ids
    logger: Logger
    state: Callable[[], str]
    under_way: Callable[[], int]
    """How many calls have not ended."""
    health: Callable[[], dict[str, Any]]
