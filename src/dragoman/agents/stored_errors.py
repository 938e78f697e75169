"""Errors of agents, as the ledger keeps them and as senders get them back."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

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
from dragoman.replies.encoding import clean_details, clean_message, encode_kept_error

_CLASSES: dict[ErrorCode, type[ToolError]] = {
    ErrorCode.INVALID_ARGUMENT: InvalidArgument,
    ErrorCode.NOT_FOUND: NotFound,
    ErrorCode.TIMEOUT: TimedOut,
    ErrorCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    ErrorCode.UNAUTHORIZED: Unauthorized,
}


def stored_error(error: ToolError, correlation_id: str | None) -> bytes:
    """JSON of an error, without details that have no such form, or that are too large to be kept."""
    told = error.structured(None, correlation_id)

    def encode(message: str, details: Any) -> bytes:
        return msgspec.json.encode(replace(told, message=message, details=details))

    try:
        return encode_kept_error(encode, told.message, told.details)
    except Exception:  # What a handler made up.
        return encode_kept_error(encode, clean_message(told.message), clean_details(told.details))


def error_in(stored: bytes | None) -> ToolError:
    """The error that a message failed with."""
    if stored is None:
        return InternalFailure("The message failed")
    told = structured_in(stored)
    return _CLASSES.get(told.code, InternalFailure)(told.message, told.details)


def structured_in(stored: bytes) -> StructuredError:
    """The error as clients see it. Earlier versions have stored details that are no mapping."""
    told = msgspec.json.decode(stored)
    if not isinstance(told.get("details"), dict):
        told["details"] = None
    return msgspec.convert(told, StructuredError)
