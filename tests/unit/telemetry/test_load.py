"""How busy the process is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime

import pytest

from dragoman.clock import SystemClock, Timer
from dragoman.telemetry.load import LagMonitor, PressureMonitor, process_memory
from dragoman.testing import ManualClock, open_server


class BusyClock:
    """A manual clock on a loop that can be blocked: time passes, and what falls due meanwhile fires late."""

    def __init__(self) -> None:
        self.loop = ManualClock()
        self.blocked = 0.0
        self.fired = 0

    def now(self) -> datetime:
        return self.loop.now()

    def timestamp(self) -> str:
        return self.loop.timestamp()

    def monotonic(self) -> float:
        return self.loop.monotonic() + self.blocked

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        def fire() -> None:
            self.fired += 1
            callback()

        return self.loop.call_later(seconds, fire)

    def block(self, seconds: float) -> None:
        self.blocked += seconds


@pytest.fixture
def clock() -> BusyClock:
    return BusyClock()


@pytest.fixture
def monitor(clock: BusyClock) -> LagMonitor:
    """Of a process with a call under way."""
    monitor = LagMonitor(clock)
    monitor.under_way = ["a call"]
    monitor.start()
    return monitor


@pytest.fixture
def idle(clock: BusyClock) -> LagMonitor:
    """Of a process in which no call runs."""
    monitor = LagMonitor(clock)
    monitor.start()
    return monitor


def test_a_loop_that_is_never_late_has_no_lag(clock: BusyClock, monitor: LagMonitor) -> None:
    clock.loop.advance(5)
    assert monitor.p99_ms() == 0


def test_a_monitor_that_was_not_started_knows_of_no_lag(clock: BusyClock) -> None:
    clock.block(1)
    assert LagMonitor(clock).p99_ms() == 0


def test_a_block_shows_once_it_is_over(clock: BusyClock, monitor: LagMonitor) -> None:
    clock.loop.advance(1)
    clock.block(0.3)
    clock.loop.advance(0.05)
    assert monitor.p99_ms() == 300


def test_a_block_shows_while_it_lasts(clock: BusyClock, monitor: LagMonitor) -> None:
    clock.block(0.25)
    assert monitor.p99_ms() == 200  # The timer was due after 50 ms.


def test_one_late_timer_in_two_hundred_is_not_what_p99_is_about(clock: BusyClock, monitor: LagMonitor) -> None:
    clock.block(0.04)
    clock.loop.advance(0.05)
    assert monitor.p99_ms() == 40
    clock.loop.advance(9.5)
    assert monitor.p99_ms() == 0


def test_the_lag_is_that_of_the_ninety_ninth_in_a_hundred(clock: BusyClock, monitor: LagMonitor) -> None:
    for number in range(99):
        clock.block(0.0005 * number)
        clock.loop.advance(0.05)
    assert monitor.p99_ms() == pytest.approx(48.5, abs=0.01)


def test_what_happened_before_the_window_is_forgotten(clock: BusyClock, monitor: LagMonitor) -> None:
    for _ in range(5):
        clock.block(0.5)
        clock.loop.advance(0.05)
    clock.loop.advance(7)
    assert monitor.p99_ms() == 500
    clock.loop.advance(1)
    assert monitor.p99_ms() == 0


def test_a_monitor_that_was_stopped_takes_no_more_samples(clock: BusyClock, monitor: LagMonitor) -> None:
    monitor.stop()
    clock.block(1)
    clock.loop.advance(1)
    assert monitor.p99_ms() == 0
    monitor.stop()


def test_an_idle_process_is_looked_at_once_a_second(clock: BusyClock, idle: LagMonitor) -> None:
    pressure = PressureMonitor(clock, 1000, lambda: 1)
    pressure.start()
    clock.loop.advance(2)
    assert idle.is_idle
    before = clock.fired
    moments = set()
    for _ in range(6000):
        fired = clock.fired
        clock.loop.advance(0.01)
        if clock.fired > fired:
            moments.add(round(clock.loop.monotonic(), 2))
    assert clock.fired - before <= 121
    assert len(moments) <= 61  # Both in the same moment.


def test_calls_are_looked_at_every_50_ms_and_for_a_second_after(clock: BusyClock, idle: LagMonitor) -> None:
    clock.loop.advance(2.5)
    idle.under_way = ["a call"]
    idle.wake()
    before = clock.fired
    clock.loop.advance(10)
    assert clock.fired - before == pytest.approx(200, abs=1)
    idle.under_way = []
    idle.wake()  # One that has come and gone.
    assert not idle.is_idle
    before = clock.fired
    clock.loop.advance(1.1)
    assert clock.fired - before == pytest.approx(20, abs=1)
    assert idle.is_idle


def test_a_block_by_the_first_call_of_an_idle_process_shows(clock: BusyClock, idle: LagMonitor) -> None:
    clock.loop.advance(5.5)
    idle.under_way = ["a call"]
    idle.wake()
    clock.block(0.3)
    clock.loop.advance(0.05)
    assert idle.p99_ms() == pytest.approx(250)  # The second of more than a hundred.


def test_one_late_timer_of_an_idle_process_counts_as_one_in_two_hundred(clock: BusyClock, idle: LagMonitor) -> None:
    clock.loop.advance(10)
    clock.block(0.04)
    clock.loop.advance(1)
    clock.loop.advance(8)
    assert idle.p99_ms() == 0


def test_a_block_that_an_idle_process_is_late_for_shows(clock: BusyClock, idle: LagMonitor) -> None:
    clock.loop.advance(5)
    clock.block(1.4)
    idle.wake()  # It is over, and a call begins.
    assert idle.p99_ms() == pytest.approx(350)  # The second of more than a hundred.


async def test_a_call_wakes_the_monitor_of_an_idle_server() -> None:
    clock = ManualClock()
    async with open_server(clock=clock) as server:
        clock.advance(5)
        lag = server.runtime.slots.lag
        assert lag.is_idle
        (await server.runtime.call("echo", {"text": "x"}))
        assert not lag.is_idle


async def test_a_loop_that_is_really_blocked_shows() -> None:
    monitor = LagMonitor(SystemClock())
    monitor.start()
    time.sleep(0.15)  # noqa: ASYNC251  The block itself, not a wait for something.
    assert monitor.p99_ms() >= 90
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert monitor.p99_ms() >= 90
    monitor.stop()


def test_memory_is_what_the_process_really_holds() -> None:
    before = process_memory()
    assert before > 1_000_000
    ballast = bytearray(b"x" * 50_000_000)
    assert process_memory() - before > 40_000_000
    assert len(ballast) == 50_000_000
