"""Slots, load and health: what the process can take on, and how it is doing."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from dragoman.calls.limits import encode_arguments
from dragoman.calls.places import AwaitedPlaces, Release
from dragoman.calls.settings import ResourcesConfig
from dragoman.clock import Clock, SystemClock
from dragoman.errors import NoFreeSlot, PayloadTooLarge, ToolError
from dragoman.sections import ValidationResult
from dragoman.telemetry.load import LagMonitor, process_memory
from dragoman.tools.settings import ToolsConfig

HealthStatus: TypeAlias = Literal["healthy", "degraded", "unhealthy"]

DEGRADED_LAG_MS = 100
UNHEALTHY_LAG_MS = 500
UNHEALTHY_REFUSALS = 3
_BUSY = 0.8


class Telemetry(msgspec.Struct, frozen=True, rename="camel"):
    """How much is in use at this moment."""

    memory_usage_bytes: int
    event_loop_delay_ms: float
    concurrent_executions: int
    max_concurrent_executions: int


class Slots(AwaitedPlaces):
    """A fixed number of slots, taken without waiting or not at all, and one reserved for `health`."""

    def __init__(
        self,
        config: ResourcesConfig | None = None,
        tools: ToolsConfig | None = None,
        clock: Clock | None = None,
        setting: str | None = "resources.max_concurrent_executions",
    ) -> None:
        """`setting` says how many there are."""
        super().__init__((config or ResourcesConfig()).max_concurrent_executions, setting)
        self.max_payload_bytes = (tools or ToolsConfig()).max_payload_bytes
        self.lag = LagMonitor(clock or SystemClock())
        self.consecutive_refusals = 0
        """Calls turned away with RESOURCE_EXHAUSTED since one last ended otherwise."""
        self._reserved = 1

    def take_reserved(self) -> None:
        """Take the slot that is kept free of ordinary work, and is not part of any count."""
        if self._reserved == 0:
            raise NoFreeSlot(1)
        self._reserved = 0

    def give_back_reserved(self, _: object = None) -> None:
        """Free the reserved slot; for `Call.undo`, as is `give_back`."""
        self._reserved = 1

    def give_back(self, _: object = None) -> None:
        """Free a slot that is in use and nobody's share, and let the longest waiter try again."""
        self.in_use -= 1
        if self.waiting.tenants:
            self.wake_next()

    def try_acquire_slot(self) -> Release | None:
        """A function that gives the slot back, however often it is called, or None when all are taken."""
        return self.take() if self.has_room() else None

    async def acquire_slot(self) -> Release:
        """Wait for a slot, first come first served; for work that can wait."""
        return await self.acquire()

    def validate_payload_size(self, payload: Any) -> ValidationResult:
        """Whether `payload` is JSON of at most `tools.max_payload_bytes`."""
        try:
            self.check_payload_size(payload)
        except ToolError as error:
            return ValidationResult(False, [{"path": "", "message": error.message}])
        return ValidationResult(True)

    def check_payload_size(self, payload: Any) -> None:
        """As `validate_payload_size`; raises what a call with such arguments is refused with."""
        size = len(encode_arguments(payload))
        if size > self.max_payload_bytes:
            raise PayloadTooLarge(size, self.max_payload_bytes)

    def is_approaching_limits(self) -> bool:
        """Whether more than four fifths of the slots are taken."""
        return self.in_use > _BUSY * self.limit

    def get_telemetry(self) -> Telemetry:
        return Telemetry(process_memory(), self.lag.p99_ms(), self.in_use, self.limit)

    def get_health_status(self) -> HealthStatus:
        """The worst that any measure says."""
        lag = self.lag.p99_ms()
        if self.in_use >= self.limit or lag > UNHEALTHY_LAG_MS or self.consecutive_refusals >= UNHEALTHY_REFUSALS:
            return "unhealthy"
        if self.is_approaching_limits() or lag > DEGRADED_LAG_MS:
            return "degraded"
        return "healthy"
