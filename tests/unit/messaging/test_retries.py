"""The retry policy and its delays."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ErrorCode, StructuredError
from dragoman.messaging.retries import RetryPolicy, backoff_ms

POLICY = RetryPolicy(base_delay_ms=100, max_delay_ms=1_000, backoff_multiplier=3)


@pytest.mark.requirement("FND-AACP-16", "FND-AACP-40")
def test_delays_grow_by_the_multiplier_up_to_the_longest() -> None:
    assert [backoff_ms(POLICY, retry, lambda: 1.0) for retry in range(5)] == [100, 300, 900, 1_000, 1_000]
    assert backoff_ms(POLICY, 10_000, lambda: 1.0) == 1_000


@pytest.mark.requirement("FND-AACP-40")
def test_jitter_takes_away_up_to_a_half() -> None:
    chances = iter((0.0, 0.5, 1.0))
    assert [backoff_ms(POLICY, 1, lambda: next(chances)) for _ in range(3)] == [150, 225, 300]


@pytest.mark.requirement("FND-AACP-40")
@given(retry=st.integers(0, 50), seed=st.integers())
def test_the_same_random_source_gives_the_same_delay_within_the_limit(retry: int, seed: int) -> None:
    first, second = (backoff_ms(POLICY, retry, random.Random(seed).random) for _ in range(2))
    assert first == second
    assert 50 <= first <= 1_000


@pytest.mark.requirement("FND-AACP-40", "FND-AACP-42")
def test_the_defaults_are_five_attempts_and_retries_of_timeouts() -> None:
    policy = RetryPolicy()
    assert policy.max_attempts == 5
    assert [policy.has_attempt_left(retries) for retries in (0, 3, 4, 9)] == [True, True, False, False]
    assert policy.should_retry_error(StructuredError(ErrorCode.TIMEOUT, "late"))
    assert policy.should_retry_error(StructuredError(ErrorCode.RESOURCE_EXHAUSTED, "full", {"retryable": True}))
    assert not policy.should_retry_error(StructuredError(ErrorCode.INTERNAL, "broken"))


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"base_delay_ms": 0}, "base_delay_ms"),
        ({"base_delay_ms": 10, "max_delay_ms": 9}, "base_delay_ms"),
        ({"backoff_multiplier": 0.5}, "backoff_multiplier"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RetryPolicy(**values)
