"""Errors of agents, as the ledger keeps them and as senders get them back."""

from __future__ import annotations

import msgspec

from dragoman.errors import (
    ErrorCode,
    InternalFailure,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    StructuredError,
    TimedOut,
    ToolError,
    Unauthorized,
)

_CLASSES: dict[ErrorCode, type[ToolError]] = {
    ErrorCode.INVALID_ARGUMENT: InvalidArgument,
    ErrorCode.NOT_FOUND: NotFound,
    ErrorCode.TIMEOUT: TimedOut,
    ErrorCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    ErrorCode.UNAUTHORIZED: Unauthorized,
}


def stored_error(error: ToolError, correlation_id: str | None) -> bytes:
    """JSON of an error."""
    return msgspec.json.encode(error.structured(None, correlation_id))


def error_in(stored: bytes | None) -> ToolError:
    """The error that a message failed with."""
    if stored is None:
        return InternalFailure("The message failed")
    told = msgspec.json.decode(stored, type=StructuredError)
    return _CLASSES.get(told.code, InternalFailure)(told.message, told.details)
