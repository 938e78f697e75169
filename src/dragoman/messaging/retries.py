"""When something is tried again: a policy, and the delay before each retry. No timers, and no randomness of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from dragoman.errors import ErrorCode, StructuredError

Random: TypeAlias = Callable[[], float]
"""Gives numbers from 0 up to 1, such as `random.Random(seed).random`."""


def is_transient(error: StructuredError) -> bool:
    """Whether an error is a timeout, which says nothing about the work, or says itself that a retry may help."""
    return error.code is ErrorCode.TIMEOUT or (error.details or {}).get("retryable") is True


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and how soon something is tried again.

    `max_attempts` counts the first attempt. The delay before retry n, counted from 0, is `base_delay_ms` times
    `backoff_multiplier` to the power of n, at most `max_delay_ms`, of which jitter takes away up to a half.
    """

    max_attempts: int = 5
    base_delay_ms: float = 1_000
    max_delay_ms: float = 60_000
    backoff_multiplier: float = 2.0
    should_retry_error: Callable[[StructuredError], bool] = is_transient

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}, and must be at least 1")
        if not 0 < self.base_delay_ms <= self.max_delay_ms:
            raise ValueError(f"base_delay_ms is {self.base_delay_ms}, and must be above 0 and at most max_delay_ms")
        if self.backoff_multiplier < 1:
            raise ValueError(f"backoff_multiplier is {self.backoff_multiplier}, and must be at least 1")

    def has_attempt_left(self, retry_count: int) -> bool:
        """Whether there may be another attempt after the first one and `retry_count` retries."""
        return retry_count + 1 < self.max_attempts


def backoff_ms(policy: RetryPolicy, retry_count: int, random: Random) -> float:
    """The delay before the next attempt, after `retry_count` retries."""
    return _longest_ms(policy, retry_count) * (1 + random()) / 2


def _longest_ms(policy: RetryPolicy, retry_count: int) -> float:
    try:
        return min(policy.max_delay_ms, policy.base_delay_ms * policy.backoff_multiplier**retry_count)
    except OverflowError:
        return policy.max_delay_ms
