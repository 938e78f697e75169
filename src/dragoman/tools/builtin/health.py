"""Says how the server is doing, in a slot of its own, so that a full server can say that it is full."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct, to_builtins

from dragoman.tools.context import ToolContext
from dragoman.tools.settings import ToolsConfig
from dragoman.tools.tool import Handler, Hints, Tool, ToolDefinition

HEALTH_SCHEMA: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


class HealthSource(Protocol):
    """What says how busy the server is."""

    limit: int

    def get_telemetry(self) -> Struct: ...
    def get_health_status(self) -> str: ...


def health_report(
    info: Mapping[str, Any], config: ToolsConfig, slots: HealthSource, missing: Callable[[], tuple[str, ...]]
) -> dict[str, Any]:
    """What `health` answers; `missing` gives the parts of the server that are not running."""
    status, gone = slots.get_health_status(), missing()
    return {
        "server": dict(info),
        "config": {
            "toolTimeoutMs": config.default_timeout_ms,
            "maxConcurrentExecutions": slots.limit,
            "maxPayloadBytes": config.max_payload_bytes,
            "maxStateBytes": config.max_state_bytes,
        },
        "resources": to_builtins(slots.get_telemetry()),
        "status": "degraded" if gone and status == "healthy" else status,
        **({"missingParts": list(gone)} if gone else {}),
    }


def health_handler(report: Callable[[], dict[str, Any]]) -> Handler:
    """Answers what `report` gives."""

    async def health(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        return report()

    return health


def health_tool(report: Callable[[], dict[str, Any]]) -> Tool:
    """The tool `health`; `report` gives what it answers."""
    return Tool(
        ToolDefinition(
            name="health",
            description="Reports the server's status, its limits and what is in use.",
            input_schema=HEALTH_SCHEMA,
            hints=Hints(read_only=True, idempotent=True, open_world=False),
        ),
        health_handler(report),
        is_reserved=True,
        wants_context=False,
    )
