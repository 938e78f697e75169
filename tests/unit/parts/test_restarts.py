"""When a loop that failed runs again."""

from __future__ import annotations

import pytest

from dragoman.parts.restarts import RestartLimit, delay_before_restart

LIMIT = RestartLimit(most=3, within=60.0, first_delay=1.0, longest_delay=3.0)


@pytest.mark.parametrize(
    ("failures", "delay"),
    [
        ([100.0], 1.0),
        ([99.0, 100.0], 2.0),
        ([98.0, 99.0, 100.0], 3.0),  # 4.0, but for the longest delay.
        ([97.0, 98.0, 99.0, 100.0], None),
        ([40.0, 98.0, 99.0, 100.0], 3.0),  # The first was too long ago to count.
        ([40.1, 98.0, 99.0, 100.0], None),
        ([1.0, 2.0, 3.0, 4.0, 100.0], 1.0),
    ],
)
def test_each_recent_failure_doubles_the_delay_and_too_many_end_it(failures: list[float], delay: float | None) -> None:
    assert delay_before_restart(failures, 100.0, LIMIT) == delay
