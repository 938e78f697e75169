"""The event loop of a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from dragoman.process.loop import SWITCH_SECONDS, new_event_loop


@pytest.fixture(autouse=True)
def _switches_as_before() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_a_thread_that_computes_does_not_keep_those_of_a_server_waiting_for_milliseconds() -> None:
    new_event_loop(2).close()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    assert SWITCH_SECONDS < 0.001
