"""Ids that are used once."""

from __future__ import annotations

import pytest

from dragoman.adapters.dict_claims import DictClaims
from dragoman.errors import ResourceExhausted
from dragoman.testing import ManualClock


async def test_an_id_is_claimed_once_until_its_time_is_over() -> None:
    clock = ManualClock()
    claims, until = DictClaims(clock), clock.now().timestamp() + 10
    assert await claims.claim("a", until) is True
    clock.advance(10)
    assert await claims.claim("a", until) is False
    assert await claims.claim("b", until) is True


async def test_claims_are_refused_when_there_are_too_many_and_none_is_forgotten() -> None:
    clock = ManualClock()
    claims, until = DictClaims(clock, most=2), clock.now().timestamp() + 10
    assert [claims.take(each, until + index) for index, each in enumerate("ab")] == [True, True]
    with pytest.raises(ResourceExhausted) as refused:
        claims.take("c", until)
    assert refused.value.details is not None
    assert refused.value.details["retryable"] is True
    assert claims.take("a", until) is False
    clock.advance(120)
    assert claims.take("c", until + 120) is True


def test_every_start_has_a_keeper_of_its_own() -> None:
    clock = ManualClock()
    assert DictClaims(clock).keeper != DictClaims(clock).keeper
