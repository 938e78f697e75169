"""Slots, payload sizes, lag and the small functions beside them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.calls.settings import ResourcesConfig
from dragoman.calls.slots import Slots
from dragoman.sections import ValidationResult
from dragoman.telemetry.load import LagMonitor
from dragoman.testing import open_server
from dragoman.tools.settings import ToolsConfig
from tests.support.answers import error_in
from tests.support.calls import Held, LateClock, begin
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[3]


def slots(limit: int) -> Slots:
    return Slots(ResourcesConfig(max_concurrent_executions=limit))


@pytest.mark.requirement("FND-RES-01")
def test_slots_are_given_out_up_to_the_limit_and_again_when_they_come_back() -> None:
    resources = slots(2)
    first, second = resources.try_acquire_slot(), resources.try_acquire_slot()
    assert first is not None
    assert second is not None
    assert resources.try_acquire_slot() is None
    first()
    assert resources.in_use == 1
    assert resources.try_acquire_slot() is not None
    assert resources.try_acquire_slot() is None


@pytest.mark.requirement("FND-RES-01", "FND-CALL-11")
def test_slot_that_is_given_back_twice_comes_back_once() -> None:
    resources = slots(2)
    first, second = resources.try_acquire_slot(), resources.try_acquire_slot()
    assert first is not None
    assert second is not None
    first()
    first()
    assert resources.in_use == 1


@pytest.mark.requirement("FND-RES-02")
async def test_waiting_for_a_slot_ends_when_one_is_released() -> None:
    resources = slots(1)
    release = await resources.acquire_slot()
    waiting = asyncio.ensure_future(resources.acquire_slot())
    await asyncio.sleep(0)
    assert not waiting.done()
    release()
    async with asyncio.timeout(PATIENCE):
        (await waiting)()
    assert resources.in_use == 0


@pytest.mark.requirement("FND-RES-02")
async def test_waiters_are_served_in_the_order_in_which_they_came() -> None:
    resources = slots(1)
    release = await resources.acquire_slot()
    served: list[int] = []

    async def wait(number: int) -> None:
        done = await resources.acquire_slot()
        served.append(number)
        done()

    waiting = [asyncio.ensure_future(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    release()
    await asyncio.gather(*waiting)
    assert served == [0, 1, 2]


@pytest.mark.requirement("FND-RES-02")
async def test_waiter_who_is_overtaken_by_a_call_keeps_its_place() -> None:
    resources = slots(1)
    release = await resources.acquire_slot()
    served: list[int] = []

    async def wait(number: int) -> None:
        done = await resources.acquire_slot()
        served.append(number)
        done()

    waiting = [asyncio.ensure_future(wait(number)) for number in range(2)]
    await asyncio.sleep(0)
    release()
    overtaking = resources.try_acquire_slot()
    await asyncio.sleep(0)
    assert overtaking is not None
    assert served == []
    overtaking()
    await asyncio.gather(*waiting)
    assert served == [0, 1]


@pytest.mark.requirement("FND-RES-02")
@pytest.mark.parametrize("woken", [False, True])
async def test_waiter_who_gives_up_takes_no_slot_with_it(woken: bool) -> None:
    resources = slots(1)
    release = await resources.acquire_slot()
    quitter, stayer = (asyncio.ensure_future(resources.acquire_slot()) for _ in range(2))
    await asyncio.sleep(0)
    if woken:
        release()
    quitter.cancel()
    await asyncio.gather(quitter, return_exceptions=True)
    if not woken:
        release()
    async with asyncio.timeout(PATIENCE):
        (await stayer)()
    assert (quitter.cancelled(), resources.in_use) == (True, 0)


def sized(limit: int) -> Slots:
    return Slots(tools=ToolsConfig(max_payload_bytes=limit))


@pytest.mark.requirement("FND-RES-03")
@pytest.mark.parametrize(
    ("payload", "size"),
    [({}, 2), ({"a": "x"}, 9), ({"a": "é"}, 10), ({"a": "€"}, 11), ({"a": "😀"}, 12), ([1, 2], 5), (None, 4), ("ü", 4)],
)
def test_payload_is_measured_in_bytes_of_json_and_may_be_exactly_as_large_as_the_limit(payload: Any, size: int) -> None:
    assert sized(size).validate_payload_size(payload) == ValidationResult(True)
    assert sized(size - 1).validate_payload_size(payload) == ValidationResult(
        False, [{"path": "", "message": f"Arguments are {size} bytes, and at most {size - 1} are taken"}]
    )


def ring() -> list[Any]:
    values: list[Any] = []
    values.append(values)
    return values


@pytest.mark.requirement("FND-RES-03")
@pytest.mark.parametrize("make", [object, ring, lambda: "\ud800"], ids=["object", "circular", "surrogate"])
def test_payload_that_is_not_json_does_not_pass_as_nothing(make: Any) -> None:
    assert sized(1_000_000).validate_payload_size({"x": make()}) == ValidationResult(
        False, [{"path": "", "message": "Arguments cannot be serialised"}]
    )


@pytest.mark.requirement("FND-RES-04", "FND-RES-05")
def test_telemetry_says_what_is_in_use() -> None:
    clock = LateClock()
    resources = Slots(ResourcesConfig(max_concurrent_executions=3), clock=clock)
    resources.try_acquire_slot()
    resources.lag.start()
    clock.elapsed = 0.3
    telemetry = msgspec.to_builtins(resources.get_telemetry())
    memory = telemetry.pop("memoryUsageBytes")
    assert telemetry == {"eventLoopDelayMs": 250.0, "concurrentExecutions": 1, "maxConcurrentExecutions": 3}
    assert isinstance(memory, int)
    assert 1_000_000 < memory < 1_000_000_000_000  # An interpreter takes megabytes, whatever the unit is taken for.


@pytest.mark.slow
@pytest.mark.requirement("FND-RES-05")
def test_memory_grows_with_what_the_process_holds() -> None:
    # In a process of its own: one that has freed a lot before may have room for more without growing.
    code = """
from tests.unit.calls.test_slots import slots
resources = slots(1)
before = resources.get_telemetry().memory_usage_bytes
ballast = bytearray(b"x") * 64_000_000
print(resources.get_telemetry().memory_usage_bytes - before)
"""
    grown = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert int(grown.stdout) > 32_000_000


def sample(clock: LateClock, delay: float, times: int = 1) -> None:
    """Let the monitor's timer fire that much too late, that many times."""
    for _ in range(times):
        clock.elapsed += 0.05 + delay
        clock.run_loop()


@pytest.mark.requirement("FND-RES-06")
def test_lag_is_the_99th_percentile_of_how_late_the_timer_fires() -> None:
    clock = LateClock()
    lag = LagMonitor(clock)
    lag.under_way = ["a call"]
    lag.start()
    sample(clock, 0.0, 98)
    sample(clock, 0.02)
    assert lag.p99_ms() == 0.0  # One of a hundred, the timer that is waiting now included.
    sample(clock, 0.03)
    assert lag.p99_ms() == pytest.approx(20, abs=0.01)


@pytest.mark.requirement("FND-RES-06")
def test_one_block_of_the_loop_shows_until_its_window_ends() -> None:
    clock = LateClock()
    lag = LagMonitor(clock)
    lag.under_way = ["a call"]
    lag.start()
    sample(clock, 0.0, 111)
    sample(clock, 1.0)
    assert lag.p99_ms() > 900
    sample(clock, 0.0, 40)
    assert lag.p99_ms() > 900


@pytest.mark.requirement("FND-RES-06")
def test_lag_of_the_last_ten_seconds_is_forgotten_when_a_new_window_begins() -> None:
    clock = LateClock()
    lag = LagMonitor(clock)
    lag.under_way = ["a call"]
    lag.start()
    sample(clock, 0.4, 3)
    assert lag.p99_ms() == pytest.approx(400, abs=0.01)
    sample(clock, 0.0, 200)
    assert lag.p99_ms() == 0.0


@pytest.mark.requirement("FND-RES-06")
def test_loop_that_is_blocked_at_this_moment_counts_before_its_timer_has_fired() -> None:
    clock = LateClock()
    lag = LagMonitor(clock)
    lag.under_way = ["a call"]
    lag.start()
    clock.elapsed += 0.25
    assert lag.p99_ms() == pytest.approx(200, abs=0.01)
    lag.stop()
    clock.run_loop()
    assert lag.p99_ms() == 0.0


@pytest.mark.requirement("FND-RES-06")
async def test_blocking_the_loop_of_a_running_server_shows_in_its_telemetry() -> None:
    async with open_server() as server:
        await server.client()
        time.sleep(0.2)  # noqa: ASYNC251 -- to block the loop is the point.
        assert server.runtime.slots.get_telemetry().event_loop_delay_ms > 100


@pytest.mark.requirement("FND-RES-07")
@given(limit=st.integers(1, 200), data=st.data())
def test_limits_are_near_exactly_above_four_fifths(limit: int, data: st.DataObject) -> None:
    resources = slots(limit)
    taken = data.draw(st.integers(0, limit))
    for _ in range(taken):
        resources.try_acquire_slot()
    assert resources.is_approaching_limits() is (5 * taken > 4 * limit)


@pytest.mark.requirement("FND-RES-08")
async def test_one_call_more_than_there_are_slots_is_refused_until_one_ends() -> None:
    held = [Held(f"hold{number}") for number in range(3)]
    async with open_server([one.tool for one in held], {"resources": {"maxConcurrentExecutions": 2}}) as server:
        client = await server.client()
        first, _ = begin(client, "hold0"), begin(client, "hold1")
        await asyncio.gather(held[0].begun.wait(), held[1].begun.wait())
        assert error_in(await client.call_tool("hold2"))["details"]["reason"] == "no_free_slot"
        assert server.runtime.slots.in_use == 2
        held[0].release.set()
        await client.answer(first)
        held[2].release.set()
        assert (await client.call_tool("hold2"))["isError"] is False
        held[1].release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert server.runtime.slots.in_use == 0
