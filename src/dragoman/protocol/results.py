"""What a `tools/call` is answered with, as structs: made and encoded in C, because there is one for every call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType, field, json

from dragoman.protocol.versions import SERVER_INFO_KEY


class ResultMeta(Struct, gc=False):
    """`_meta` of a result."""

    run_id: str = field(name="dragoman/runId")
    correlation_id: str = field(name="dragoman/correlationId")
    duration_ms: float = field(name="dragoman/durationMs")
    truncated: bool | UnsetType = field(default=UNSET, name="dragoman/truncated")
    cached: bool | UnsetType = field(default=UNSET, name="dragoman/cached")
    repeated: bool | UnsetType = field(default=UNSET, name="dragoman/repeated")
    next_cursor: str | UnsetType = field(default=UNSET, name="dragoman/nextCursor")
    server_info: Mapping[str, Any] | Raw | UnsetType = field(default=UNSET, name=SERVER_INFO_KEY)


class TextBlock(Struct, gc=False, tag_field="type", tag="text"):
    """The commonest content block."""

    text: str


class ToolResult(Struct):
    """A result in either era; `result_type` and the server's info are the modern one's."""

    content: list[TextBlock] | Raw
    is_error: bool = field(name="isError")
    meta: ResultMeta = field(name="_meta")
    structured_content: Raw | UnsetType = field(default=UNSET, name="structuredContent")
    result_type: str | UnsetType = field(default=UNSET, name="resultType")


class InputRequest(Struct, gc=False):
    """A request that the client is to answer, by repeating its call."""

    method: str
    params: Mapping[str, Any]


class InputRequired(Struct):
    """The modern era's result of a call that cannot go on before its client has answered something.

    It is the value of an outcome, and no dialect words it: an edge gives it its `meta` and sends it as it is.
    """

    input_requests: Mapping[str, InputRequest] = field(name="inputRequests")
    request_state: str = field(name="requestState")
    result_type: str = field(default="input_required", name="resultType")
    meta: ResultMeta | UnsetType = field(default=UNSET, name="_meta")


class TaskCreated(Struct, rename="camel"):
    """The modern era's result of a call that goes on as a task. Like `InputRequired`, no dialect words it."""

    task_id: str
    status: str
    created_at: str
    last_updated_at: str
    ttl_ms: int
    poll_interval_ms: int
    result_type: str = "task"
    meta: ResultMeta | UnsetType = field(default=UNSET, name="_meta")


Interim: TypeAlias = InputRequired | TaskCreated
INTERIM = frozenset({InputRequired, TaskCreated})
"""Values of outcomes that are sent as they are."""


def bytes_added_later(server_info: Mapping[str, Any]) -> int:
    """How much the session adds to a result in the modern era, where it says what it is and who made it."""
    result = ToolResult([], False, ResultMeta("", "", 0.0))
    before = len(json.encode(result))
    result.result_type, result.meta.server_info = "complete", server_info
    return len(json.encode(result)) - before
