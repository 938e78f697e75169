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


def test_an_id_stays_used_when_the_clock_is_put_back() -> None:
    clock = ManualClock()
    claims, until = DictClaims(clock), clock.now().timestamp() + 10
    assert claims.take("a", until) is True
    clock.advance(1000)
    assert claims.take("b", until + 1000) is True  # By now the first one is forgotten.
    assert claims.take("a", until) is False


def test_one_holder_takes_half_of_the_room() -> None:
    clock = ManualClock()
    claims, until = DictClaims(clock, most=4), clock.now().timestamp() + 10
    assert [claims.take(each, until, "ada") for each in "ab"] == [True, True]
    with pytest.raises(ResourceExhausted):
        claims.take("c", until, "ada")
    assert claims.take("d", until, "ben") is True
    clock.advance(120)
    assert claims.take("e", until + 120, "ada") is True
