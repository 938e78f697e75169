"""The `structured` dialect: a result is its JSON text, an error is the Foundation's StructuredError as JSON text."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.calls.call import Call, Outcome
from dragoman.errors import InternalFailure, InvalidArgument, StructuredError, ToolError
from dragoman.protocol.results import ResultMeta, TextBlock, ToolResult
from dragoman.tools.content import content_blocks, encode_json
from dragoman.tools.schema import Validator


class Structured:
    """The dialect that `dragoman serve` speaks unless told otherwise."""

    def render(self, call: Call, outcome: Outcome) -> ToolResult:
        """The `tools/call` result; raises `InternalFailure` when the value cannot be sent."""
        if outcome.error is not None:
            assert isinstance(outcome.error, ToolError)
            return wrap_tool_error(outcome.error.structured(), call)
        value = outcome.value
        try:
            blocks = content_blocks(value)
            encoded = encode_json(value if blocks is None else blocks)
        except Exception as error:  # A value may say itself how it is written, and fail at that in any way.
            raise InternalFailure("Result not serializable", {"reason": "result_not_serializable"}) from error
        content = [TextBlock(encoded.decode())] if blocks is None else msgspec.Raw(encoded)
        result = ToolResult(content, False, ResultMeta(call.run_id, call.correlation_id, call.duration_ms))
        validator = call.tool.output_validator
        if validator is not None:
            _check_result(validator, None if blocks else msgspec.json.decode(encoded))
            result.structured_content = msgspec.Raw(encoded)
        return result


def _check_result(validator: Validator, value: Any) -> None:
    try:
        validator.check(value)
    except InvalidArgument as error:
        details = {"reason": "result_does_not_match_schema", **(error.details or {})}
        raise InternalFailure("Result does not match the tool's output schema", details) from error


def wrap_tool_error(error: StructuredError, call: Call) -> ToolResult:
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
    meta = ResultMeta(call.run_id, call.correlation_id, call.duration_ms)
    return ToolResult([TextBlock(text)], True, meta)
