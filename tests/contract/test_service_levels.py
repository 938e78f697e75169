"""The contract of `ServiceLevels`, for every engine, also out of several processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.slo.port import HOUR, LevelKey, ServiceLevels
from tests.contract.engines import SITES, opened_storages

NOON = 28_333_320
"""A minute that begins an hour."""
ENDED = LevelKey("acme", "knowledge.create_document", "external", "SUCCESS")
SLOW = LevelKey("acme", "knowledge.create_document", "external", "latency", 9)


@pytest.fixture(params=SITES, ids=str)
async def levels(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[ServiceLevels]]:
    engine, count = request.param
    async with opened_storages(engine, tmp_path, count=count) as storages:
        yield [storage.port(ServiceLevels) for storage in storages]


async def test_nothing_is_there_before_something_is_added(levels: list[ServiceLevels]) -> None:
    assert await levels[0].read(0) == {}
    await levels[0].add(NOON, {})
    assert await levels[-1].read(0) == {}
    assert await levels[0].condense(NOON, NOON) == 0


async def test_counts_of_one_minute_are_added_up_over_processes(levels: list[ServiceLevels]) -> None:
    await asyncio.gather(*(levels[number % len(levels)].add(NOON, {ENDED: 2, SLOW: 1}) for number in range(10)))
    for each in levels:
        assert await each.read(NOON) == {ENDED: 20, SLOW: 10}


async def test_a_window_begins_with_its_minute(levels: list[ServiceLevels]) -> None:
    for minute in range(5):
        await levels[0].add(NOON + minute, {ENDED: 10**minute})
    assert await levels[-1].read(NOON + 2) == {ENDED: 11_100}
    assert await levels[-1].read(NOON + 5) == {}


@pytest.mark.parametrize("field", LevelKey._fields)
async def test_counts_differ_by_each_part_of_their_key(levels: list[ServiceLevels], field: str) -> None:
    changed: dict[str, Any] = {field: 1 if field == "bucket" else "other"}
    other = ENDED._replace(**changed)
    await levels[0].add(NOON, {ENDED: 1, other: 2})
    await levels[-1].add(NOON + 1, {other: 3})
    assert await levels[0].read(0) == {ENDED: 1, other: 5}


async def test_names_are_kept_as_they_are(levels: list[ServiceLevels]) -> None:
    odd = LevelKey("", "ü' OR 1=1 --", "", "x" * 500)
    await levels[0].add(NOON, {odd: 1})
    assert await levels[-1].read(NOON) == {odd: 1}


async def test_old_minutes_become_hours_and_nothing_is_lost(levels: list[ServiceLevels]) -> None:
    for minute in range(-1, 2 * HOUR):
        await levels[minute % len(levels)].add(NOON + minute, {ENDED: 1, SLOW: 2})
    assert await levels[0].condense(NOON + 30, 0) > 0
    assert await levels[-1].read(0) == {ENDED: 121, SLOW: 242}
    assert await levels[-1].read(NOON) == {ENDED: 120, SLOW: 240}
    assert await levels[-1].read(NOON + 1) == {ENDED: 90, SLOW: 180}
    gone = await levels[-1].condense(NOON + 2 * HOUR, 0)
    assert gone == 2 * (30 + HOUR - 1)
    assert await levels[0].read(NOON + 1) == {ENDED: 60, SLOW: 120}
    assert await levels[0].condense(NOON + 2 * HOUR, 0) == 0
    assert await levels[0].read(0) == {ENDED: 121, SLOW: 242}


async def test_old_hours_are_forgotten(levels: list[ServiceLevels]) -> None:
    for minute in (NOON - HOUR, NOON - 1, NOON, NOON + 90):
        await levels[0].add(minute, {ENDED: 1})
    assert await levels[-1].condense(NOON, NOON) == 2
    assert await levels[0].read(0) == {ENDED: 2}
