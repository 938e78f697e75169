"""Every contract suite runs over every engine, each test with a clock and a storage of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.storage.port import Storage
from dragoman.testing import ManualClock
from tests.contract.engines import ENGINES, opened_storages


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def storage(engine: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Storage]:
    async with opened_storages(engine, tmp_path, clock) as (storage,):
        yield storage
