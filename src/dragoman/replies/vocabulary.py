"""What each tool error is called in each dialect: a row for every class of the tree in `errors.py`.

The `structured` dialect uses an error's own `code`. A dialect may use a more particular word for an error that knows
more: see `failures.code_of` and `plain.sentence_for`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from dragoman import errors
from dragoman.errors import ToolError


class EnvelopeCode(StrEnum):
    """The codes of the `envelope` dialect; a closed set."""

    INVALID_INPUT = "INVALID_INPUT"
    MISSING_REQUIRED_FIELD = "MISSING_REQUIRED_FIELD"
    INVALID_FORMAT = "INVALID_FORMAT"
    ARRAY_TOO_LARGE = "ARRAY_TOO_LARGE"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CONFLICT = "CONFLICT"
    OPERATION_FAILED = "OPERATION_FAILED"
    TOOL_TIMEOUT = "TOOL_TIMEOUT"
    RATE_LIMITED = "RATE_LIMITED"
    MEMORY_PRESSURE = "MEMORY_PRESSURE"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    NOT_IMPLEMENTED = "NOT_IMPLEMENTED"
    SERVICE_UNAVAILABLE = "SERVICE_UNAVAILABLE"


class ContractCode(StrEnum):
    """The codes of the action contract, and no others; see `STATUSES` for what HTTP says."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    UNAUTHORIZED = "UNAUTHORIZED"
    FORBIDDEN = "FORBIDDEN"
    NOT_FOUND = "NOT_FOUND"
    CONFLICT = "CONFLICT"
    UNPROCESSABLE_ENTITY = "UNPROCESSABLE_ENTITY"
    RATE_LIMIT_EXCEEDED = "RATE_LIMIT_EXCEEDED"
    EXPIRED = "EXPIRED"
    INTERNAL = "INTERNAL"
    UNAVAILABLE = "UNAVAILABLE"


STATUSES: Mapping[ContractCode, int] = {
    ContractCode.INVALID_ARGUMENT: 400,
    ContractCode.UNAUTHORIZED: 401,
    ContractCode.FORBIDDEN: 403,
    ContractCode.NOT_FOUND: 404,
    ContractCode.CONFLICT: 409,
    ContractCode.UNPROCESSABLE_ENTITY: 422,
    ContractCode.RATE_LIMIT_EXCEEDED: 429,
    ContractCode.EXPIRED: 440,
    ContractCode.INTERNAL: 500,
    ContractCode.UNAVAILABLE: 503,
}
"""The status of an answer with each code."""
RETRYABLE = frozenset((ContractCode.RATE_LIMIT_EXCEEDED, ContractCode.UNAVAILABLE))
"""The codes after which the same request may succeed a little later."""


class Words(NamedTuple):
    """The words for one class of errors."""

    envelope: EnvelopeCode
    contract: ContractCode
    plain: str = "Module error: {code}"
    """The specification's sentence, or the nearest one that it has; `plain.sentence_for` fills it in."""


_SERVER_STOPS = "Server is shutting down: "
VOCABULARY: Mapping[type[ToolError], Words] = {
    errors.ToolError: Words(EnvelopeCode.OPERATION_FAILED, ContractCode.INTERNAL),
    errors.Refused: Words(EnvelopeCode.OPERATION_FAILED, ContractCode.INVALID_ARGUMENT),
    errors.InvalidArgument: Words(
        EnvelopeCode.INVALID_INPUT, ContractCode.UNPROCESSABLE_ENTITY, "Invalid input: {message}"
    ),
    errors.LimitExceeded: Words(EnvelopeCode.INVALID_INPUT, ContractCode.INVALID_ARGUMENT, "Invalid input: {message}"),
    errors.NotFound: Words(EnvelopeCode.NOT_FOUND, ContractCode.NOT_FOUND),
    errors.Conflict: Words(EnvelopeCode.CONFLICT, ContractCode.CONFLICT, "Invalid input: {message}"),
    errors.AlreadyExists: Words(EnvelopeCode.ALREADY_EXISTS, ContractCode.CONFLICT, "Invalid input: {message}"),
    errors.Unauthorized: Words(EnvelopeCode.OPERATION_FAILED, ContractCode.FORBIDDEN, "Access denied"),
    errors.MissingScope: Words(EnvelopeCode.OPERATION_FAILED, ContractCode.FORBIDDEN, "Access denied"),
    errors.NotAuthentic: Words(EnvelopeCode.OPERATION_FAILED, ContractCode.UNAUTHORIZED, "Access denied"),
    errors.MalformedEnvelope: Words(
        EnvelopeCode.INVALID_INPUT, ContractCode.INVALID_ARGUMENT, "Invalid input: {message}"
    ),
    errors.NotEnabled: Words(EnvelopeCode.INVALID_INPUT, ContractCode.INVALID_ARGUMENT, "Invalid input: {message}"),
    errors.Expired: Words(EnvelopeCode.OPERATION_FAILED, ContractCode.EXPIRED),
    errors.Unanswered: Words(EnvelopeCode.OPERATION_FAILED, ContractCode.FORBIDDEN),
    errors.ResourceExhausted: Words(EnvelopeCode.SERVICE_UNAVAILABLE, ContractCode.RATE_LIMIT_EXCEEDED),
    errors.PayloadTooLarge: Words(
        EnvelopeCode.INVALID_INPUT, ContractCode.INVALID_ARGUMENT, "Invalid input: {message}"
    ),
    errors.NoFreeSlot: Words(EnvelopeCode.SERVICE_UNAVAILABLE, ContractCode.RATE_LIMIT_EXCEEDED),
    errors.RateLimited: Words(
        EnvelopeCode.RATE_LIMITED, ContractCode.RATE_LIMIT_EXCEEDED, "Call frequency limit exceeded"
    ),
    errors.BusFull: Words(EnvelopeCode.SERVICE_UNAVAILABLE, ContractCode.RATE_LIMIT_EXCEEDED),
    errors.QuotaExceeded: Words(EnvelopeCode.SERVICE_UNAVAILABLE, ContractCode.RATE_LIMIT_EXCEEDED),
    errors.MemoryPressure: Words(EnvelopeCode.MEMORY_PRESSURE, ContractCode.UNAVAILABLE),
    errors.Stopping: Words(
        EnvelopeCode.SERVICE_UNAVAILABLE,
        ContractCode.UNAVAILABLE,
        _SERVER_STOPS + "the call was not started and can be repeated",
    ),
    errors.Failed: Words(EnvelopeCode.OPERATION_FAILED, ContractCode.INTERNAL),
    errors.TimedOut: Words(EnvelopeCode.TOOL_TIMEOUT, ContractCode.UNAVAILABLE, "Module timed out after {timeout}ms"),
    errors.Abandoned: Words(
        EnvelopeCode.SERVICE_UNAVAILABLE,
        ContractCode.UNAVAILABLE,
        _SERVER_STOPS + "the module had not finished; {whether_to_repeat}",
    ),
    errors.ClientCannotBeAsked: Words(EnvelopeCode.OPERATION_FAILED, ContractCode.INTERNAL),
    errors.InternalFailure: Words(EnvelopeCode.INTERNAL_ERROR, ContractCode.INTERNAL, "Internal error occurred"),
    errors.ResultTooLarge: Words(
        EnvelopeCode.OPERATION_FAILED, ContractCode.INTERNAL, "Module error: RESULT_TOO_LARGE"
    ),
}


def words_for(kind: type[ToolError]) -> Words:
    """The row of a class, or of the nearest class above it for a class that the tree does not have."""
    return next(VOCABULARY[each] for each in kind.__mro__ if each in VOCABULARY)
