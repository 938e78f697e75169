"""Step 4: what is too large, too long or too deep is refused before anything is done with it, and so say the gates."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from dragoman.calls.call import Call, Service
from dragoman.calls.guards import Guards
from dragoman.calls.limits import Limits, encode_arguments, limits_by_tool
from dragoman.calls.settings import LimitsConfig
from dragoman.errors import PayloadTooLarge
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.settings import ToolsConfig


@dataclass(frozen=True)
class CheckRequest:
    """Weighs the arguments as JSON and looks at every element; a tool's own limits win over the general ones."""

    limits: LimitsConfig
    tools: ToolsConfig
    catalogue: Catalogue
    guards: Guards
    payload_setting: str | None = "tools.max_payload_bytes"
    """The setting that the limit of the payload is, for tools without one of their own."""

    def __call__(self, proceed: Service, /) -> Service:
        general, special = limits_by_tool(self.limits, self.tools)
        pressure, judge = self.guards.pressure, self.guards.before
        get_tool, most = self.catalogue.get, self.limits.max_request_bytes

        def check(call: Call) -> Awaitable[Any]:
            size = call.origin.payload_bytes
            if size is None:
                size = len(encode_arguments(call.arguments))
            call.payload_bytes = size
            limits = special.get(call.name, general)
            if size > limits.max_payload_bytes and size > (call.origin.max_payload_bytes or 0):
                raise too_large(call, size, limits)
            if not pressure.is_calm or (
                size > limits.sure_bytes and (size > most or not limits.surely_fit(call.arguments, size))
            ):
                judge_closely(call, limits)
            return proceed(call)

        def too_large(call: Call, size: int, limits: Limits) -> PayloadTooLarge:
            if (most := call.origin.max_payload_bytes) is not None:
                return PayloadTooLarge(size, most, "gateway.max_artifact_bytes")
            setting = limits.overridden.get("max_payload_bytes", self.payload_setting)
            return PayloadTooLarge(size, limits.max_payload_bytes, setting)

        def judge_closely(call: Call, limits: Limits) -> None:
            tool = get_tool(call.name)
            if tool is None or not tool.is_reserved:  # A server under pressure must still be able to say so.
                schema = tool.definition.input_schema if tool else None
                judge(call, limits.violations(call.arguments, schema, call.payload_bytes))

        return check
