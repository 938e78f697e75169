"""How the `envelope` dialect words errors: which code, and whether the call may be repeated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from dragoman.calls.call import Call
from dragoman.errors import InternalFailure, InvalidArgument, LimitExceeded, Refused, ToolError
from dragoman.protocol.results import TextBlock, ToolResult
from dragoman.replies.encoding import CUT, DETAILS_TOO_LARGE, clean_details, clean_message, meta_of
from dragoman.replies.vocabulary import EnvelopeCode, words_for
from dragoman.tools.content import encode_json

LONGEST_MESSAGE = 1000
WORTH_REPEATING = frozenset(
    {
        EnvelopeCode.TOOL_TIMEOUT,
        EnvelopeCode.RATE_LIMITED,
        EnvelopeCode.MEMORY_PRESSURE,
        EnvelopeCode.SERVICE_UNAVAILABLE,
    }
)
"""Codes after which the same call may well succeed. With any other, something has to change first."""

_ABOUT_FORM = frozenset({"format", "pattern", "contentEncoding", "contentMediaType"})
_SAID_BESIDE = frozenset({"retryable", "retryAfterMs"})


class EnvelopeError(Struct, rename="camel"):
    """What a client is told about a failed call. Raises `ValueError` for what the contract does not allow."""

    code: EnvelopeCode
    message: str
    context: Mapping[str, Any] | UnsetType = UNSET
    retryable: bool = False
    retry_after_ms: int | UnsetType = UNSET

    def __post_init__(self) -> None:
        self.code = EnvelopeCode(self.code)
        if not 1 <= len(self.message) <= LONGEST_MESSAGE:
            raise ValueError(f"a message has 1 to {LONGEST_MESSAGE} characters, not {len(self.message)}")
        if self.retry_after_ms is not UNSET and self.retry_after_ms < 1:
            raise ValueError(f"retryAfterMs must be at least 1, not {self.retry_after_ms}")


class FailureMetadata(Struct, rename="camel"):
    """What is known about a failure."""

    duration_ms: int


class Failure(Struct, kw_only=True):
    """The envelope of an error."""

    success: bool = False
    error: EnvelopeError
    metadata: FailureMetadata


def code_of(error: ToolError) -> EnvelopeCode:
    """The code of an error: its class's, or a more particular one where the error knows more."""
    usual = words_for(type(error)).envelope
    if isinstance(error, LimitExceeded):
        found = _facts(error).get("errors")
        codes = [each.get("code") for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
        return EnvelopeCode.ARRAY_TOO_LARGE if EnvelopeCode.ARRAY_TOO_LARGE in codes else usual
    if isinstance(error, InvalidArgument) and error.keywords:
        if error.keywords == {"required"}:
            return EnvelopeCode.MISSING_REQUIRED_FIELD
        if error.keywords <= _ABOUT_FORM:
            return EnvelopeCode.INVALID_FORMAT
    if isinstance(error, InternalFailure) and isinstance(error.__cause__, NotImplementedError):
        return EnvelopeCode.NOT_IMPLEMENTED
    return usual


def may_repeat(error: ToolError, code: EnvelopeCode, call: Call) -> bool:
    """Whether repeating the call is safe, and worth it.

    It is safe after a refusal, because nothing has happened, and for a tool that is read-only or idempotent. It is
    worth it when `details.retryable` says so, or else after the codes in `WORTH_REPEATING`.
    """
    if not isinstance(error, Refused) and not _is_harmless(call):
        return False
    said = _facts(error).get("retryable")
    return said if isinstance(said, bool) else code in WORTH_REPEATING


def details_of(error: ToolError, call: Call) -> Mapping[str, Any] | None:
    """The details of an error, in which no hint to repeat the call is left unless `may_repeat` says the same."""
    details = error.details
    if type(details) is not dict or not ({"retryable", "retryAfterMs"} & details.keys()):
        return details
    if may_repeat(error, code_of(error), call):
        return details
    return {**{key: fact for key, fact in details.items() if key != "retryAfterMs"}, "retryable": False}


def _facts(error: ToolError) -> Mapping[str, Any]:
    return error.details or {}


def _is_harmless(call: Call) -> bool:
    return call.tool.definition.hints.are_harmless


def ever_smaller(call: Call, error: ToolError, most: int) -> Iterator[ToolResult]:
    """An error, and then with less and less of what a handler may have made up. Details have at most `most` bytes."""
    code = code_of(error)
    retryable = may_repeat(error, code, call)
    after = _facts(error).get("retryAfterMs")
    retry_after = after if retryable and type(after) is int and after > 0 else UNSET
    metadata = FailureMetadata(int(call.duration_ms))
    context = clean_details({key: fact for key, fact in _facts(error).items() if key not in _SAID_BESIDE}, most)
    smallest = DETAILS_TOO_LARGE if context else None
    for details, most in (
        (context, LONGEST_MESSAGE),
        *((smallest, most) for most in (LONGEST_MESSAGE, 250, 60, len(CUT))),
    ):
        message = clean_message(error.message, most) or code.value
        told = EnvelopeError(code, message, details or UNSET, retryable, retry_after)
        text = encode_json(Failure(error=told, metadata=metadata)).decode()
        yield ToolResult([TextBlock(text)], True, meta_of(call))
