"""An outcome as the union that the optimisation document has for calls under a deadline, told apart by `status`."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from dragoman.calls.call import Call, Outcome
from dragoman.errors import EnvelopeCode, TimedOut, ToolError
from dragoman.replies.failures import code_of


class Completed(Struct, tag_field="status", tag="completed", rename="camel"):
    """The handler returned in time."""

    result: Any
    duration_ms: int


class TimedOutResult(Struct, tag_field="status", tag="timeout", rename="camel"):
    """The deadline came first. A handler gives all of its result or none, so there is never a part of it."""

    timeout_ms: int
    partial_result: Any | UnsetType = UNSET


class Fault(Struct):
    """What went wrong, in the words of the `envelope` dialect."""

    code: EnvelopeCode
    message: str


class Errored(Struct, tag_field="status", tag="error", rename="camel"):
    """The call was refused, or the handler failed."""

    error: Fault
    duration_ms: int


TimeoutResult: TypeAlias = Completed | TimedOutResult | Errored


def timeout_result(call: Call, outcome: Outcome) -> TimeoutResult:
    """What came of a call that has been answered."""
    error, duration = outcome.error, int(call.duration_ms)
    if error is None:
        return Completed(outcome.value, duration)
    if isinstance(error, TimedOut):
        return TimedOutResult(call.tool.timeout_ms)
    code = code_of(error) if isinstance(error, ToolError) else EnvelopeCode.INTERNAL_ERROR
    return Errored(Fault(code, error.message), duration)
