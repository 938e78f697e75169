"""The `structured` dialect: a result is its JSON text, an error is the Foundation's StructuredError as JSON text."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Raw

from dragoman.calls.call import Call, Outcome
from dragoman.errors import InternalFailure, ResultTooLarge, StructuredError, ToolError
from dragoman.protocol.results import ResultMeta, TextBlock, ToolResult
from dragoman.replies.encoding import (
    CUT,
    DETAILS_TOO_LARGE,
    Encoded,
    SizeLimit,
    clean_details,
    clean_message,
    encode_value,
    meta_of,
    not_serializable,
    structured_content,
    text_of_value,
)
from dragoman.replies.failures import details_of
from dragoman.replies.settings import ResponseConfig
from dragoman.schemas.returns import WRAPPED
from dragoman.tools.content import ATOMS, encode_json, encode_within

_NOTHING = Raw(WRAPPED % b"null")
_DEFAULT_LIMIT = SizeLimit(ResponseConfig().max_response_bytes)


class Structured:
    """The dialect that `dragoman serve` speaks unless told otherwise."""

    def __init__(self, size: SizeLimit = _DEFAULT_LIMIT) -> None:
        self._size = size
        self._small, self._small_text, self._most = size.small, size.small_text, size.most

    def render(self, call: Call, outcome: Outcome) -> ToolResult:
        """The `tools/call` result; raises `InternalFailure` when the value cannot be sent."""
        if outcome.error is not None:
            assert isinstance(outcome.error, ToolError)
            error = msgspec.structs.replace(outcome.error.structured(), details=details_of(outcome.error, call))
            return self._size.first_that_fits(_ever_smaller(error, call, self._most))
        value = outcome.value
        kind, is_content = type(value), False
        encoded: Encoded | None
        try:
            # The commonest kinds without `encode_value`: this is done for every result.
            if kind in ATOMS or (kind is str and len(value) <= self._small_text):
                encoded = encode_json(value)
            elif kind is dict:
                encoded = encode_within(value, self._most)
            else:
                encoded, is_content = encode_value(value, self._most)
        except InternalFailure:
            raise
        except Exception as error:  # A value may say itself how it is written, and fail at that in any way.
            raise not_serializable() from error
        if encoded is None:
            raise ResultTooLarge(None, self._size.limit)
        tool = call.tool
        returns, validator = tool.returns, tool.output_validator
        content: list[TextBlock] | Raw
        if is_content:
            content = Raw(encoded)
        elif returns.is_text:
            content = [TextBlock(value if kind is str else text_of_value(call, value, encoded))]
        else:
            content = [TextBlock(encoded.decode())]
        result = ToolResult(content, False, ResultMeta(call.run_id, call.correlation_id, call.duration_ms))
        if validator is None:
            pass
        elif kind in returns.exact and kind is not float:  # As `structured_content` does it, for the commonest kinds.
            if value is None:
                result.structured_content = _NOTHING
            else:
                result.structured_content = Raw(WRAPPED % encoded if returns.is_wrapped else encoded)
        else:
            result.structured_content = structured_content(call, validator, value, encoded)
        if call.cached or call.repeated:
            result.meta = meta_of(call)
        if len(encoded) > self._small:
            self._size.check(result)
        return result


def _ever_smaller(error: StructuredError, call: Call, most: int) -> Iterator[ToolResult]:
    """An error as it is, and then with less and less of what a handler may have made up. Its code is always there.

    More than `most` bytes of it are not even encoded.
    """
    if error.details:
        error = msgspec.structs.replace(error, details=clean_details(error.details, most))
    if len(str(error.message)) <= most:
        yield wrap_tool_error(error, call)
    yield wrap_tool_error(msgspec.structs.replace(error, message=clean_message(error.message, 1000)), call)
    details = DETAILS_TOO_LARGE if error.details else None
    for most in (1000, 250, 60):
        yield wrap_tool_error(StructuredError(error.code, clean_message(error.message, most), details), call)
    # The client may have chosen a correlation id that weighs more than the rest; `_meta` has it all the same.
    yield _as_result(StructuredError(error.code, clean_message(error.message, len(CUT)), details), call)


def wrap_tool_error(error: StructuredError, call: Call) -> ToolResult:
    """The `tools/call` result for `error`, with the ids of the call that it answers."""
    whole = msgspec.structs.replace(error, run_id=call.run_id, correlation_id=call.correlation_id)
    try:
        return _as_result(whole, call)
    except Exception:  # What a handler made up.
        message, details = clean_message(whole.message), clean_details(whole.details)
        return _as_result(msgspec.structs.replace(whole, message=message, details=details), call)


def _as_result(error: StructuredError, call: Call) -> ToolResult:
    return ToolResult([TextBlock(encode_json(error).decode())], True, meta_of(call))
