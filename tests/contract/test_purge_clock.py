"""The contract of `PurgeClock`: what it says, only looks at a wall clock that agree can have said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.storage.port import PurgeClock, Storage
from dragoman.testing import ManualClock
from tests.contract.engines import ENGINES, SITES, opened_storages

HOUR = 3600.0
DAY_AND_MORE = 25 * HOUR


@pytest.fixture(params=SITES, ids=str)
async def looks(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[list[PurgeClock]]:
    """The same one, as each process has it."""
    engine, count = request.param
    async with opened_storages(engine, tmp_path, clock, count) as storages:
        yield [storage.port(PurgeClock) for storage in storages]


def wall(clock: ManualClock) -> float:
    return clock.now().timestamp()


async def test_nothing_is_over_before_two_looks_an_hour_apart(looks: list[PurgeClock], clock: ManualClock) -> None:
    first = wall(clock)
    assert await looks[0].now() == 0.0
    clock.skip(HOUR - 1)
    assert await looks[-1].now() == 0.0
    clock.skip(1)
    assert await looks[0].now() == first


async def test_a_clock_that_is_right_is_followed_one_to_two_hours_late(
    looks: list[PurgeClock], clock: ManualClock
) -> None:
    lags = set()
    for _ in range(40):
        clock.skip(HOUR / 8)
        lags.add(round(wall(clock) - await looks[-1].now()))
        lags.add(round(wall(clock) - await looks[0].now()))
    assert sorted(each for each in lags if each < 1e6) == [round(HOUR * eighths / 8) for eighths in range(8, 16)]


@pytest.mark.parametrize("before", [0.0, HOUR - 20, HOUR - 40, HOUR, 1.5 * HOUR])
async def test_a_clock_that_is_a_day_ahead_for_a_moment_is_not_believed(
    looks: list[PurgeClock], clock: ManualClock, before: float
) -> None:
    start = wall(clock)
    await looks[0].now()
    clock.skip(before)
    clock.jump(DAY_AND_MORE)
    for _ in range(4):
        assert await looks[-1].now() <= start
        clock.skip(10)
    clock.jump(-DAY_AND_MORE)
    for _ in range(20):
        assert await looks[0].now() <= wall(clock) - HOUR
        clock.skip(HOUR / 6)


async def test_a_clock_that_is_ahead_twice_and_right_between_is_not_believed(
    looks: list[PurgeClock], clock: ManualClock
) -> None:
    for _ in range(3):
        clock.jump(DAY_AND_MORE)
        assert await looks[0].now() <= wall(clock) - DAY_AND_MORE
        clock.jump(-DAY_AND_MORE)
        clock.skip(HOUR / 2)
        await looks[-1].now()
        clock.skip(HOUR / 2)


async def test_a_clock_that_is_set_back_takes_back_what_was_over(looks: list[PurgeClock], clock: ManualClock) -> None:
    await looks[0].now()
    clock.skip(HOUR)
    clock.jump(-DAY_AND_MORE)
    assert await looks[0].now() == wall(clock)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_restart_of_the_machine_counts_as_an_hour(engine: str, tmp_path: Path) -> None:
    async def look(clock: ManualClock) -> float:
        async with opened_storages(engine, tmp_path, clock) as (storage,):
            return await storage.port(PurgeClock).now()

    before = ManualClock()
    before.skip(60)
    assert await look(before) == 0.0
    after = ManualClock(before.now())  # Its boot clock begins anew.
    after.skip(10)
    assert await look(after) == wall(before)
    after.skip(10)
    assert await look(after) == wall(before)  # A restart of the server is none of the machine.


async def test_a_look_that_brings_nothing_new_writes_nothing(
    storage: Storage, clock: ManualClock, tmp_path: Path
) -> None:
    looks = storage.port(PurgeClock)
    await looks.now()
    before = (tmp_path / "dragoman.db-wal").stat().st_size
    for _ in range(10):
        clock.skip(60)
        await looks.now()
    assert (tmp_path / "dragoman.db-wal").stat().st_size == before
