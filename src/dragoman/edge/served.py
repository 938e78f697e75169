"""The runtime, as the transports see it."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from dragoman.clock import Clock
from dragoman.edge.connection import Connection, Wire
from dragoman.parts.supervisor import Supervisor
from dragoman.telemetry.log import Logger


class Served(Protocol):
    """What a transport starts, connects clients to, and stops."""

    clock: Clock
    logger: Logger
    shutdown_timeout: float
    """Seconds."""
    began: float
    """When it was started, or made, by the monotonic clock."""
    supervisor: Supervisor
    """Has the parts."""

    @property
    def state(self) -> Enum: ...

    @property
    def is_running(self) -> bool:
        """Whether calls are taken."""
        ...

    @property
    def missing_parts(self) -> tuple[str, ...]:
        """The parts of the server that have failed and are not restarted."""
        ...

    async def start(self) -> None: ...
    async def stop(self, timeout: float | None = None) -> int: ...
    def connect(self, wire: Wire) -> Connection: ...
    def disconnect(self, connection: Connection) -> None: ...
