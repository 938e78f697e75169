"""Errors of the SDK as errors of ours."""

from __future__ import annotations

from typing import Any

import msgspec
from mcp.server.runner import modern_error_data
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data

from dragoman.errors import InternalError, InvalidRequest, MethodNotFound, ProtocolError


class SdkError(ProtocolError):
    """An error in the SDK's own words."""

    def __init__(self, code: int, message: str, data: Any) -> None:
        super().__init__(message, data if isinstance(data, dict) else None)
        self.code = code


def protocol_error_of(error: Exception, method: str, *, modern: bool) -> ProtocolError | None:
    """The error that answers a request which raised `error`; None for a defect, whose text is only for the log."""
    if isinstance(error, ProtocolError):
        return error
    if isinstance(error, MCPError):
        if error.code == MethodNotFound.code:
            return MethodNotFound(f"Method not found: {method}")
        return SdkError(error.code, error.message, error.data)
    data = modern_error_data(error) if modern else handler_exception_to_error_data(error)
    if data is None or data.code == InternalError.code:
        return None
    return SdkError(data.code, data.message, data.data)


def error_in(body: bytes) -> SdkError:
    """The error in an answer of the SDK, which is JSON-RPC or plain text."""
    try:
        error = msgspec.json.decode(body)["error"]
        said = error["message"].partition("\n")[0]  # What may follow repeats parts of the message.
        return SdkError(error["code"], said, error.get("data"))
    except (msgspec.DecodeError, LookupError, TypeError):
        return SdkError(InvalidRequest.code, body.decode(errors="replace"), None)
