"""Storage errors as clients see them: a reason from a short list; never a path, a statement or a row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from dragoman.errors import (
    InternalFailure,
    OverQuota,
    ResourceExhausted,
    StorageBusy,
    StorageClosed,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageLost,
    StorageUnavailable,
    StorageUncertain,
    StorageUnsupported,
    ToolError,
    TooManyWrites,
)

UNCERTAIN = "storage_uncertain"
"""The reason of a failure after which it is unknown whether a change was stored."""

P = ParamSpec("P")
T = TypeVar("T")

_REASONS: dict[type[StorageError], str] = {
    StorageFull: "storage_full",
    StorageBusy: "storage_busy",
    StorageCorrupt: "storage_corrupt",
    StorageUnavailable: "storage_unavailable",
    StorageLost: "storage_unavailable",
    StorageUnsupported: "storage_unsupported",
    StorageClosed: "storage_closed",
}


def words_storage_errors(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """A handler whose storage errors become tool errors; the particulars are their cause, for the log."""

    @wraps(function)
    async def run(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return await function(*arguments, **named)
        except StorageError as error:
            raise tool_error(error) from error.__cause__ or error

    return run


def tool_error(error: StorageError) -> ToolError:
    """The error that answers a call."""
    if isinstance(error, OverQuota):
        return ResourceExhausted(
            f"This would make {error.actual} bytes, and at most {error.limit} are kept for a caller; "
            "delete something first",
            {
                "reason": "storage_quota",
                "limit": error.limit,
                "actual": error.actual,
                "retryable": False,
                "setting": "storage.max_bytes_per_caller",
            },
        )
    if isinstance(error, TooManyWrites):
        return ResourceExhausted(
            "Too many writes are waiting",
            {"reason": "storage_busy", "limit": error.limit, "actual": error.actual, "retryable": True},
        )
    if isinstance(error, StorageUncertain):
        return InternalFailure(
            "The server's storage failed, and whether the change was stored is unknown",
            {"reason": UNCERTAIN, "outcome": "UNKNOWN", "retryable": False},
        )
    return InternalFailure("The server's storage failed", {"reason": _REASONS.get(type(error), "storage_failed")})


def is_uncertain(error: ToolError) -> bool:
    """Whether a change may have been stored all the same: only with its id or key may it be tried again."""
    details: Any = error.details
    return isinstance(error, InternalFailure) and isinstance(details, Mapping) and details.get("reason") == UNCERTAIN
