"""The `structured` dialect: a result is its JSON text, an error is the Foundation's StructuredError as JSON text."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.calls.call import Call, Outcome
from dragoman.errors import InternalFailure, InvalidArgument, StructuredError, ToolError
from dragoman.tools.content import content_blocks, encode_json
from dragoman.tools.schema import Validator


class Structured:
    """The dialect that `dragoman serve` speaks unless told otherwise."""

    def render(self, call: Call, outcome: Outcome) -> dict[str, Any]:
        """The `tools/call` result; raises `InternalFailure` when the value cannot be sent."""
        if outcome.error is None:
            result = _wrap_value(call, outcome.value)
        else:
            assert isinstance(outcome.error, ToolError)
            result = wrap_tool_error(outcome.error.structured(), call)
        result["_meta"] = {
            "dragoman/runId": call.run_id,
            "dragoman/correlationId": call.correlation_id,
            "dragoman/durationMs": call.duration_ms,
        }
        return result


def _wrap_value(call: Call, value: Any) -> dict[str, Any]:
    try:
        blocks = content_blocks(value)
        encoded = encode_json(value if blocks is None else blocks)
    except Exception as error:  # A value may say itself how it is written, and fail at that in any way.
        raise InternalFailure("Result not serializable", {"reason": "result_not_serializable"}) from error
    content = [{"type": "text", "text": encoded.decode()}] if blocks is None else msgspec.Raw(encoded)
    result: dict[str, Any] = {"content": content, "isError": False}
    validator = call.tool.output_validator if call.tool is not None else None
    if validator is not None:
        _check_result(validator, None if blocks else msgspec.json.decode(encoded))
        result["structuredContent"] = msgspec.Raw(encoded)
    return result


def _check_result(validator: Validator, value: Any) -> None:
    try:
        validator.check(value)
    except InvalidArgument as error:
        details = {"reason": "result_does_not_match_schema", **(error.details or {})}
        raise InternalFailure("Result does not match the tool's output schema", details) from error


def wrap_tool_error(error: StructuredError, call: Call) -> dict[str, Any]:
    """The `tools/call` result for `error`, with the ids of the call that it answers."""
    whole = msgspec.structs.replace(error, run_id=call.run_id, correlation_id=call.correlation_id)
    try:
        text = encode_json(whole).decode()
    except Exception:  # What a handler made up.
        message = str(whole.message).encode(errors="replace").decode()
        details = whole.details
        try:
            encode_json(details)
        except Exception:
            details = {"reason": "details_not_serializable"}
        text = encode_json(msgspec.structs.replace(whole, message=message, details=details)).decode()
    return {"content": [{"type": "text", "text": text}], "isError": True}
