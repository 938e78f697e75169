"""When a process may take another for silent: only if it could have heard it."""

from __future__ import annotations

import math

import pytest

from dragoman.adapters.wakefulness import Wakefulness
from tests.support.ledger_processes import BootClock

LEASE = 8.0


@pytest.mark.parametrize(
    ("pauses", "may_judge"),
    [
        ([1.0] * 7, False),  # It was not there for a whole lease.
        ([1.0] * 8, True),
        ([4.0] * 2, True),  # Half a lease is no sleep: a renewed lease lasts longer.
        ([1.0] * 8 + [4.1], False),
        ([100.0], False),
        ([100.0] + [1.0] * 7, False),
        ([100.0] + [1.0] * 8, True),
        ([100.0, 4.0, 3.0, 0.5], False),  # Shorter pauses after it do not hide it.
        ([100.0, 4.0, 3.0, 1.0], True),
        ([100.0] + [1.0] * 8 + [5.0] + [1.0] * 7, False),
    ],
)
def test_a_lease_has_expired_for_those_that_were_awake_for_as_long(pauses: list[float], may_judge: bool) -> None:
    clock = BootClock()
    wakefulness = Wakefulness(clock)
    for pause in pauses:
        clock.seconds += pause
        wakefulness.note()
    assert wakefulness.expiry(LEASE) == (clock.seconds if may_judge else -math.inf)


def test_to_ask_is_to_be_awake() -> None:
    clock = BootClock()
    wakefulness = Wakefulness(clock)
    told = []
    for _ in range(3):
        clock.seconds += LEASE / 2
        told.append(wakefulness.expiry(LEASE))
    assert told == [-math.inf, clock.seconds - LEASE / 2, clock.seconds]
