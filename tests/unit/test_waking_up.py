"""Moments in which all processes wake up together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.clock import until_next


@given(now=st.floats(0, 1e6), every=st.floats(0.05, 60))
def test_the_moment_is_a_multiple_and_neither_too_soon_nor_too_late(now: float, every: float) -> None:
    seconds = until_next(now, every)
    assert every / 2 - 1e-6 <= seconds <= every * 1.5 + 1e-6
    moment = (now + seconds) / every
    assert moment == pytest.approx(round(moment), abs=1e-4)


def test_a_timer_that_fired_a_little_early_does_not_fire_twice() -> None:
    assert until_next(0.9996, 1.0) == pytest.approx(1.0004)
