"""Sending again what was not confirmed. A retry reuses the `requestId` and gets a new `messageId`.

Nothing here starts a timer or a task: whoever owns a retransmitter calls `process_retries_once` from time to time.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from msgspec.structs import replace as changed

from dragoman.agents.aacp.envelope import AACPOutcome, moment
from dragoman.agents.aacp.records import AACPMessageRecord, AACPPersistenceAdapter
from dragoman.clock import Clock, iso_milliseconds
from dragoman.errors import StructuredError
from dragoman.messaging.retries import Random, RetryPolicy, backoff_ms

AACPRetryPolicy = RetryPolicy


class Retried(Protocol):
    """The decision of a retransmitter about a message that is due."""

    async def try_again(self, record: AACPMessageRecord) -> None: ...

    async def give_up(self, message_id: str) -> None:
        """There are no attempts left, or the message has expired."""
        ...


class AACPRetransmitter:
    """Knows which messages are due, by the injected clock, and whether the policy allows another attempt."""

    def __init__(
        self, adapter: AACPPersistenceAdapter, retried: Retried, policy: AACPRetryPolicy, clock: Clock, random: Random
    ) -> None:
        self._adapter = adapter
        self._retried = retried
        self._policy = policy
        self._clock = clock
        self._random = random
        self._due: dict[str, datetime] = {}

    async def schedule_retry(self, message_id: str, delay_ms: float) -> None:
        """Try a message again after `delay_ms`, in place of an earlier plan for it."""
        due = self._clock.now() + timedelta(milliseconds=delay_ms)
        await self._plan(message_id, iso_milliseconds(due))
        self._due[message_id] = due

    async def cancel_retry(self, message_id: str) -> None:
        self._due.pop(message_id, None)
        await self._plan(message_id, None)

    async def process_retries_once(self) -> int:
        """Try everything that is due again, the longest due first; returns how many messages were."""
        now = self._clock.now()
        due = sorted((moment, message_id) for message_id, moment in self._due.items() if moment <= now)
        return sum([await self._process(message_id) for _, message_id in due])

    def resume(self, record: AACPMessageRecord) -> None:
        """Go on with the plan that a record has; a record without one is due now."""
        planned = record.next_retry_at
        self._due[record.message_id] = moment("nextRetryAt", planned) if planned else self._clock.now()

    def should_retry(self, record: AACPMessageRecord, error: StructuredError | None = None) -> bool:
        """Whether there may be another attempt: UNKNOWN may, an error if the policy says so, COMPLETED never."""
        if record.status is AACPOutcome.COMPLETED or not self._policy.has_attempt_left(record.retry_count):
            return False
        if error is not None:
            return self._policy.should_retry_error(error)
        return record.status is AACPOutcome.UNKNOWN

    def get_backoff_delay(self, retry_count: int) -> float:
        """Milliseconds before the next attempt, after `retry_count` retries."""
        return backoff_ms(self._policy, retry_count, self._random)

    def get_max_attempts(self) -> int:
        return self._policy.max_attempts

    async def _process(self, message_id: str) -> bool:
        if self._due.pop(message_id, None) is None:
            return False  # Cancelled by what was sent just before it.
        record = await self._adapter.get_message_record(message_id)
        if record is not None and record.status is not AACPOutcome.UNKNOWN:
            return False
        if record is None or not self.should_retry(record):
            await self._retried.give_up(message_id)
            return False
        counted = changed(record, retry_count=record.retry_count + 1)
        await self._adapter.put_message_record(counted, replace=True)
        await self.schedule_retry(message_id, self.get_backoff_delay(counted.retry_count))
        await self._retried.try_again(counted)
        return True

    async def _plan(self, message_id: str, next_retry_at: str | None) -> None:
        record = await self._adapter.get_message_record(message_id)
        if record is not None and record.next_retry_at != next_retry_at:
            await self._adapter.put_message_record(changed(record, next_retry_at=next_retry_at), replace=True)
