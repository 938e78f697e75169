"""Time and ids, the real ones and those that do as they are told."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
import threading
import time
import uuid
import weakref
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

import pytest

from dragoman.clock import Clock, SystemClock, iso_milliseconds
from dragoman.ids import RandomIds
from dragoman.testing import ManualClock, SequentialIds
from tests.support.waiting import PATIENCE, wait_until


@pytest.mark.requirement("FND-LOG-12", "FND-LOG-03")
@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()], ids=lambda clock: type(clock).__name__)
def test_every_clock_tells_the_time_and_writes_it_as_iso_8601(clock: Clock) -> None:
    before = clock.now()
    stamp = clock.timestamp()
    after = clock.now()
    assert before.tzinfo is UTC
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", stamp)
    moment = datetime.fromisoformat(stamp)
    assert before - timedelta(milliseconds=1) <= moment <= after
    assert clock.monotonic() <= clock.monotonic()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot be told another time zone")
@pytest.mark.requirement("FND-LOG-03")
@pytest.mark.parametrize("zone", ["XYZ-5:30", "XYZ+8"])
def test_the_systems_timestamp_is_utc_in_any_time_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        moment = datetime.fromisoformat(SystemClock().timestamp())
        assert abs(datetime.now(UTC) - moment) < timedelta(minutes=1)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.requirement("FND-LOG-12")
def test_the_systems_timestamp_moves_with_the_time() -> None:
    clock = SystemClock()
    first = clock.timestamp()
    wait_until(lambda: clock.timestamp() != first)
    assert clock.timestamp() > first


@pytest.mark.parametrize(
    ("microsecond", "written"), [(0, "000"), (999, "000"), (1000, "001"), (999_999, "999"), (50_000, "050")]
)
def test_milliseconds_are_cut_off_not_rounded(microsecond: int, written: str) -> None:
    moment = datetime(2024, 1, 15, 10, 30, 0, microsecond, tzinfo=UTC)
    assert iso_milliseconds(moment) == f"2024-01-15T10:30:00.{written}Z"


@pytest.mark.requirement("FND-LOG-12")
def test_a_manual_clock_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock()
    assert [clock.timestamp(), clock.timestamp()] == ["2024-01-15T10:30:00.000Z"] * 2
    clock.advance(90.25)
    assert (clock.timestamp(), clock.monotonic()) == ("2024-01-15T10:31:30.250Z", 90.25)
    assert clock.now() == datetime(2024, 1, 15, 10, 31, 30, 250_000, tzinfo=UTC)
    assert ManualClock(datetime(2030, 1, 1, tzinfo=UTC)).timestamp() == "2030-01-01T00:00:00.000Z"


def test_a_manual_clock_fires_timers_in_order_each_at_its_own_moment() -> None:
    clock = ManualClock()
    fired: list[tuple[str, float]] = []
    clock.call_later(2, lambda: fired.append(("second", clock.monotonic())))
    clock.call_later(1, lambda: fired.append(("first", clock.monotonic())))
    clock.call_later(2, lambda: fired.append(("third", clock.monotonic())))
    clock.call_later(1.5, lambda: fired.append(("never", clock.monotonic()))).cancel()
    clock.call_later(1, lambda: clock.call_later(0.5, lambda: fired.append(("nested", clock.monotonic()))))
    clock.advance(0.999)
    assert fired == []
    clock.advance(5)
    assert fired == [("first", 1), ("nested", 1.5), ("second", 2), ("third", 2)]


def test_time_that_is_skipped_fires_what_was_due_once_and_afterwards() -> None:
    clock = ManualClock()
    fired: list[tuple[str, float]] = []

    def again() -> None:
        fired.append(("again", clock.monotonic()))
        clock.call_later(1, again)

    clock.call_later(2, lambda: fired.append(("second", clock.monotonic())))
    clock.call_later(1, again)
    clock.skip(1_000_000)
    assert fired == [("again", 1_000_000), ("second", 1_000_000)]
    clock.advance(1)
    assert fired[2:] == [("again", 1_000_001)]


async def test_the_system_clock_calls_back_on_the_loop_unless_it_is_called_off() -> None:
    clock = SystemClock()
    fired: list[int] = []
    done = asyncio.Event()
    clock.call_later(0, lambda: fired.append(threading.get_ident()))
    clock.call_later(0, lambda: fired.append(0)).cancel()
    clock.call_later(0.001, done.set)
    await asyncio.wait_for(done.wait(), PATIENCE)
    assert fired == [threading.get_ident()]


def test_random_ids_are_uuids_of_version_4() -> None:
    ids = RandomIds()
    for made in (ids.run_id(), ids.correlation_id(), ids.connection_correlation_id()):
        parsed = uuid.UUID(made)
        assert (str(parsed), parsed.version, parsed.variant) == (made, 4, uuid.RFC_4122)


def test_random_ids_do_not_repeat_across_many_sources_and_threads() -> None:
    ids = RandomIds()
    made: list[list[str]] = [[] for _ in range(8)]

    def work(mine: list[str]) -> None:
        mine.extend(ids.run_id() for _ in range(2_000))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [each for mine in made for each in mine] + [RandomIds().run_id() for _ in range(100)]
    assert len(set(everything)) == len(everything) == 16_100


def test_every_digit_that_may_vary_does() -> None:
    ids = RandomIds()
    columns = zip(*(ids.run_id() for _ in range(2_000)), strict=True)
    seen = [len(set(column)) for column in columns]
    assert [place for place, digits in enumerate(seen) if digits == 16] == [
        place for place in range(36) if place not in (8, 13, 14, 18, 19, 23)
    ]


FORK = """
import os
from dragoman.ids import RandomIds
ids = RandomIds()
ids.run_id()
reading, writing = os.pipe()
child = os.fork()
made = [ids.run_id() for _ in range(50)]
if child == 0:
    os.write(writing, " ".join(made).encode())
    os._exit(0)
os.waitpid(child, 0)
assert not set(made) & set(os.read(reading, 65536).decode().split())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_does_not_repeat_its_parents_ids() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=PATIENCE)


def test_sequential_ids_can_be_foreseen() -> None:
    ids = SequentialIds()
    assert [ids.run_id(), ids.run_id(), ids.correlation_id(), ids.connection_correlation_id()] == [
        "run-1",
        "run-2",
        "corr-1",
        "conn-1",
    ]


def test_sources_of_ids_that_are_no_longer_used_are_let_go() -> None:
    source = RandomIds()
    source.run_id()
    gone = weakref.ref(source)
    del source
    gc.collect()
    assert gone() is None


async def test_timer_keeps_nothing_of_the_context_that_it_was_set_in() -> None:
    variable: ContextVar[object] = ContextVar("variable", default=None)
    seen: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    variable.set(object())
    SystemClock().call_later(0, lambda: seen.set_result(variable.get()))
    assert await seen is None
