"""Around the steps, where spans are wanted: each call is one, and what its handler does becomes part of it."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from dragoman.calls.call import Call, Completion, Service
from dragoman.protocol.versions import VERSION_KEY
from dragoman.telemetry.log import CompletionRecord
from dragoman.telemetry.spans import remote_context
from dragoman.tools.catalogue import Catalogue
from dragoman.tools.tool import MOST_NAME

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

TOOL_ERROR = "tool_error"
_NETWORK = {
    "stdio": {"network.transport": "pipe"},
    "http": {"network.transport": "tcp", "network.protocol.name": "http"},
    "sse": {"network.transport": "tcp", "network.protocol.name": "http"},
}
_TARGETS = {
    "tools/call": "gen_ai.tool.name",
    "prompts/get": "gen_ai.prompt.name",
    "resources/read": "mcp.resource.uri",  # Of a template, the template: what fills it in are arguments.
}
_ANSWERED_WITH_AN_ERROR = frozenset({Completion.TOOL_ERROR, Completion.LATE_COMPLETED, Completion.TIMEOUT})


@dataclass(frozen=True)
class OpenSpan:
    """Opens a span as the conventions for MCP have it. The call's record ends it, and therefore the handler's end.

    Neither arguments nor results nor the caller are in it, and no name that a client made up is part of its name.
    """

    tracer: Tracer
    catalogue: Catalogue

    def __call__(self, proceed: Service, /) -> Service:
        from opentelemetry.context import attach
        from opentelemetry.propagate import get_global_textmap
        from opentelemetry.trace import Link, SpanKind, get_current_span, set_span_in_context

        start, kind, get_tool = self.tracer.start_span, SpanKind.SERVER, self.catalogue.get
        propagated = frozenset(get_global_textmap().fields)

        def open_span(call: Call) -> Awaitable[Any]:
            method, name = call.method, call.name
            if method == "tools/call":
                title = f"{method} {name}" if get_tool(name) is not None else method
            else:
                name = name[len(method) + 1 :]
                title = f"{method} {name}" if method == "prompts/get" and call.is_found else method
            parent = links = None
            if not propagated.isdisjoint(call.meta):
                parent = remote_context(call.meta)
                around = get_current_span().get_span_context()
                links = [Link(around)] if parent is not None and around.is_valid else None
            span = start(title, parent, kind, _attributes(call, name[:MOST_NAME]), links)
            call.span = span
            if span.is_recording():
                ids = span.get_span_context()
                call.trace_ids = (f"{ids.trace_id:032x}", f"{ids.span_id:016x}")
            attach(set_span_in_context(span, parent))  # For as long as the call's task: it is nobody else's.
            return proceed(call)

        return open_span

    def close(self, record: CompletionRecord, call: Call) -> None:
        """End the span of a call that has ended; for `Runtime.watchers`."""
        span = call.span
        if span is None:  # Refused before anything began.
            return
        if call.trace_ids is not None:
            span.set_attribute("dragoman.outcome", record.outcome)
            if record.outcome != Completion.SUCCESS:
                self._say_what_failed(span, record, call)
        span.end()

    def _say_what_failed(self, span: Span, record: CompletionRecord, call: Call) -> None:
        from opentelemetry.trace import StatusCode

        code, kind = record.error_code, _error_type(record, call)
        if code is not UNSET:
            span.set_attribute("dragoman.error_code", code)
            if _is_rpc_code(code):
                span.set_attribute("rpc.response.status_code", code)
        if kind is not None:
            span.set_attribute("error.type", kind)
            span.set_status(StatusCode.ERROR)


def _attributes(call: Call, target: str) -> dict[str, str]:
    found = {
        "mcp.method.name": call.method,
        "dragoman.run_id": call.run_id,
        "dragoman.correlation_id": call.correlation_id,
        **_NETWORK.get(call.origin.transport, {}),
    }
    if call.method in _TARGETS:
        found[_TARGETS[call.method]] = target
    if call.method == "tools/call":
        found["gen_ai.operation.name"] = "execute_tool"
    if call.request_id is not None:
        found["jsonrpc.request.id"] = str(call.request_id)
    version = call.meta.get(VERSION_KEY, call.origin.protocol_version)
    if isinstance(version, str):
        found["mcp.protocol.version"] = version
    if call.origin.session_id is not None:
        found["mcp.session.id"] = call.origin.session_id
    return found


def _error_type(record: CompletionRecord, call: Call) -> str | None:
    """What went wrong, in a few words that are always the same; None when nothing did."""
    code, outcome = record.error_code, record.outcome
    if outcome == Completion.ABORTED:
        return outcome
    is_rpc = code is not UNSET and _is_rpc_code(code)
    if not is_rpc and call.method == "tools/call" and outcome in _ANSWERED_WITH_AN_ERROR:
        return TOOL_ERROR
    if code is not UNSET:
        return code
    return outcome if outcome in _ANSWERED_WITH_AN_ERROR else None


def _is_rpc_code(code: str) -> bool:
    """Whether it is the number of a JSON-RPC error; the codes of tool errors are words."""
    return code.startswith("-")
