"""The `structured` dialect: a result is its JSON text, an error is the Foundation's StructuredError as JSON text."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.calls.call import Call, Outcome
from dragoman.errors import InternalFailure, InvalidArgument, StructuredError, ToolError
from dragoman.tools.catalogue import RegisteredTool
from dragoman.tools.content import content_blocks, encode_json


class Structured:
    """The dialect that `dragoman serve` speaks unless told otherwise."""

    def prepare(self, tool: RegisteredTool, outcome: Outcome) -> None:
        try:
            blocks = content_blocks(outcome.value)
            encoded = encode_json(outcome.value if blocks is None else blocks)
        except Exception:  # A value may say itself how it is written, and fail at that in any way.
            raise InternalFailure("Result not serializable", {"reason": "result_not_serializable"}) from None
        if blocks is None:
            outcome.content = [{"type": "text", "text": encoded.decode()}]
        else:
            outcome.content = msgspec.Raw(encoded)
        if tool.output_validator is not None:
            try:
                tool.output_validator.check(None if blocks else msgspec.json.decode(encoded))
            except InvalidArgument as error:
                raise InternalFailure(
                    "Result does not match the tool's output schema",
                    {"reason": "result_does_not_match_schema", **(error.details or {})},
                ) from None
            outcome.structured = msgspec.Raw(encoded)

    def render(self, call: Call, outcome: Outcome) -> dict[str, Any]:
        if isinstance(outcome.error, ToolError):
            result = wrap_tool_error(outcome.error.structured(), call)
        else:
            result = {"content": outcome.content, "isError": False}
            if outcome.structured is not None:
                result["structuredContent"] = outcome.structured
        result["_meta"] = {
            "dragoman/runId": call.run_id,
            "dragoman/correlationId": call.correlation_id,
            "dragoman/durationMs": call.duration_ms,
        }
        return result


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
