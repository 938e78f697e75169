"""The retransmitter: what is due, and what the policy allows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.agents.aacp import (
    AACPMessageRecord,
    AACPOutcome,
    AACPRetransmitter,
    AACPRetryPolicy,
    InMemoryAACPPersistenceAdapter,
)
from dragoman.errors import ErrorCode, StructuredError
from dragoman.testing import ManualClock
from tests.support.aacp import NOW, envelope, uuid

UNKNOWN, COMPLETED, FAILED = AACPOutcome.UNKNOWN, AACPOutcome.COMPLETED, AACPOutcome.FAILED
TIMEOUT = StructuredError(ErrorCode.TIMEOUT, "late")
BROKEN = StructuredError(ErrorCode.INTERNAL, "broken")


def record(number: int = 1, **changes: Any) -> AACPMessageRecord:
    sent = envelope(message_id=uuid(number), seq=number)
    fields: dict[str, Any] = {"message_id": uuid(number), "envelope": sent, "status": UNKNOWN, "timestamp": NOW}
    return AACPMessageRecord(**fields | changes)


class Desk:
    """A retransmitter, and what it did."""

    def __init__(self, **policy: Any) -> None:
        self.clock = ManualClock()
        self.adapter = InMemoryAACPPersistenceAdapter(self.clock)
        self.tried: list[tuple[str, int]] = []
        self.given_up: list[str] = []
        self.policy = AACPRetryPolicy(**{"base_delay_ms": 1_000, "max_delay_ms": 3_000, "max_attempts": 4} | policy)
        self.retransmitter = AACPRetransmitter(self.adapter, self, self.policy, self.clock, lambda: 1.0)

    async def try_again(self, record: AACPMessageRecord) -> None:
        self.tried.append((record.message_id, record.retry_count))

    async def give_up(self, message_id: str) -> None:
        self.given_up.append(message_id)


@pytest.mark.requirement("FND-AACP-41")
async def test_a_retry_is_sent_when_it_is_due_and_not_before() -> None:
    desk = Desk()
    await desk.adapter.put_message_record(record())
    await desk.retransmitter.schedule_retry(uuid(1), 500)
    kept = await desk.adapter.get_message_record(uuid(1))
    assert kept is not None
    assert kept.next_retry_at == "2024-01-15T10:30:00.500Z"
    desk.clock.advance(0.499)
    assert (await desk.retransmitter.process_retries_once(), desk.tried) == (0, [])
    desk.clock.advance(0.001)
    assert (await desk.retransmitter.process_retries_once(), desk.tried) == (1, [(uuid(1), 1)])
    assert await desk.retransmitter.process_retries_once() == 0


@pytest.mark.requirement("FND-AACP-41")
async def test_a_cancelled_retry_is_not_sent() -> None:
    desk = Desk()
    for number in (1, 2):
        await desk.adapter.put_message_record(record(number))
        await desk.retransmitter.schedule_retry(uuid(number), 500)
    await desk.retransmitter.cancel_retry(uuid(1))
    desk.clock.advance(1)
    await desk.retransmitter.process_retries_once()
    assert desk.tried == [(uuid(2), 1)]
    kept = await desk.adapter.get_message_record(uuid(1))
    assert kept is not None
    assert kept.next_retry_at is None


@pytest.mark.requirement("FND-AACP-41")
async def test_nothing_runs_in_the_background() -> None:
    before = asyncio.all_tasks()
    desk = Desk()
    await desk.adapter.put_message_record(record())
    await desk.retransmitter.schedule_retry(uuid(1), 500)
    assert asyncio.all_tasks() == before
    desk.clock.advance(3600)
    assert desk.tried == []


@pytest.mark.requirement("FND-AACP-16", "FND-AACP-38", "FND-AACP-42")
async def test_retries_are_counted_with_growing_delays_until_the_last_attempt() -> None:
    desk = Desk()
    await desk.adapter.put_message_record(record())
    await desk.retransmitter.schedule_retry(uuid(1), desk.retransmitter.get_backoff_delay(0))
    sent_at = []
    for _ in range(40):
        desk.clock.advance(0.5)
        if await desk.retransmitter.process_retries_once():
            sent_at.append(desk.clock.monotonic())
    assert sent_at == [1, 3, 6]
    assert desk.tried == [(uuid(1), 1), (uuid(1), 2), (uuid(1), 3)]
    assert desk.given_up == [uuid(1)]


@pytest.mark.requirement("FND-AACP-42")
@pytest.mark.parametrize("status", [COMPLETED, FAILED])
async def test_what_has_an_outcome_is_not_sent_again(status: AACPOutcome) -> None:
    desk = Desk()
    await desk.adapter.put_message_record(record(status=status))
    await desk.retransmitter.schedule_retry(uuid(1), 0)
    assert await desk.retransmitter.process_retries_once() == 0
    assert (desk.tried, desk.given_up) == ([], [])


async def test_what_has_expired_is_given_up() -> None:
    desk = Desk()
    await desk.retransmitter.schedule_retry(uuid(1), 0)
    assert await desk.retransmitter.process_retries_once() == 0
    assert desk.given_up == [uuid(1)]


@pytest.mark.requirement("FND-AACP-42", "FND-AACP-47")
@pytest.mark.parametrize(
    ("status", "retries", "error", "expected"),
    [
        (UNKNOWN, 0, None, True),
        (UNKNOWN, 2, None, True),
        (UNKNOWN, 3, None, False),
        (UNKNOWN, 0, TIMEOUT, True),
        (UNKNOWN, 3, TIMEOUT, False),
        (UNKNOWN, 0, BROKEN, False),
        (FAILED, 0, None, False),
        (FAILED, 0, BROKEN, False),
        (FAILED, 0, TIMEOUT, True),
        (COMPLETED, 0, None, False),
        (COMPLETED, 0, TIMEOUT, False),
    ],
)
def test_whether_something_is_retried(
    status: AACPOutcome, retries: int, error: StructuredError | None, expected: bool
) -> None:
    assert Desk().retransmitter.should_retry(record(status=status, retry_count=retries), error) is expected


@pytest.mark.requirement("FND-AACP-42", "FND-AACP-47")
def test_the_hooks_follow_the_policy() -> None:
    retransmitter = Desk(max_attempts=9, should_retry_error=lambda error: error is BROKEN).retransmitter
    assert retransmitter.get_max_attempts() == 9
    assert [retransmitter.get_backoff_delay(retries) for retries in range(3)] == [1_000, 2_000, 3_000]
    assert retransmitter.should_retry(record(status=FAILED), BROKEN)
    assert not retransmitter.should_retry(record(status=FAILED), TIMEOUT)
