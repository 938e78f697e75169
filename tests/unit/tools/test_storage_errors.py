"""How tools word what storage engines raise."""

from __future__ import annotations

import pytest

from dragoman.errors import (
    InternalFailure,
    NotFound,
    OverQuota,
    ResourceExhausted,
    StorageBusy,
    StorageClosed,
    StorageCorrupt,
    StorageError,
    StorageFailed,
    StorageFull,
    StorageLost,
    StorageUnavailable,
    StorageUncertain,
    StorageUnsupported,
    ToolError,
    TooManyWrites,
)
from dragoman.tools.storage_errors import is_uncertain, words_storage_errors


async def worded(error: Exception) -> ToolError:
    @words_storage_errors
    async def handler() -> None:
        raise error

    with pytest.raises(ToolError) as raised:
        await handler()
    return raised.value


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (StorageFailed, "storage_failed"),
        (StorageFull, "storage_full"),
        (StorageBusy, "storage_busy"),
        (StorageCorrupt, "storage_corrupt"),
        (StorageUnavailable, "storage_unavailable"),
        (StorageLost, "storage_unavailable"),
        (StorageUnsupported, "storage_unsupported"),
        (StorageClosed, "storage_closed"),
    ],
)
async def test_a_failure_is_named_and_its_particulars_are_for_the_log(kind: type[StorageError], reason: str) -> None:
    failed, cause = kind("/secret/place is full"), OSError(28, "/secret/place")
    told = await worded(failed)
    assert type(told) is InternalFailure
    assert (told.message, told.details) == ("The server's storage failed", {"reason": reason})
    assert told.__cause__ is failed
    failed.__cause__ = cause
    assert (await worded(failed)).__cause__ is cause


async def test_a_change_that_may_be_stored_is_no_refusal() -> None:
    told = await worded(StorageUncertain("/secret/place"))
    assert type(told) is InternalFailure
    assert told.message == "The server's storage failed, and whether the change was stored is unknown"
    assert told.details == {"reason": "storage_uncertain", "outcome": "UNKNOWN", "retryable": False}
    assert [is_uncertain(each) for each in (told, await worded(StorageFull("full")), NotFound("no"))] == [
        True,
        False,
        False,
    ]


async def test_a_refusal_says_which_limit_was_reached_and_whether_to_repeat_the_call() -> None:
    told = await worded(OverQuota(10, 13))
    assert type(told) is ResourceExhausted
    assert told.message == "This would make 13 bytes, and at most 10 are kept for a caller; delete something first"
    facts = {"reason": "storage_quota", "limit": 10, "actual": 13, "retryable": False}
    assert told.details == {**facts, "setting": "storage.max_bytes_per_caller"}
    told = await worded(TooManyWrites(3, 4))
    assert type(told) is ResourceExhausted
    assert told.message == "Too many writes are waiting"
    assert told.details == {"reason": "storage_busy", "limit": 3, "actual": 4, "retryable": True}


async def test_other_errors_pass() -> None:
    error = NotFound("no")
    assert await worded(error) is error
