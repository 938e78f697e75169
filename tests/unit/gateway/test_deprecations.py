"""Ends of versions are announced at least 30 days before, and the audit knows since when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from dragoman.errors import ConfigError
from dragoman.gateway.deprecations import Deprecations
from dragoman.gateway.port import SigningKeys
from dragoman.knowledge.port import Audit
from dragoman.storage.port import Storage
from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.testing import ManualClock
from tests.contract.engines import opened_storages

DAY = 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def storage(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Storage]:
    async with opened_storages("memory", tmp_path, clock) as (storage,):
        yield storage


class Server:
    """A server that starts with the end of a version, so many days from the beginning of the test."""

    def __init__(self, storage: Storage, clock: ManualClock) -> None:
        self._storage, self._clock, self._began = storage, clock, clock.now()
        self.log: list[Entry] = []

    async def starts(self, *days: float, tenants: tuple[str, ...] = ("acme",)) -> bool:
        """Whether it does; then it announces what is to be announced."""
        ends = [f"knowledge.move_document@1.0.0 {(self._began + timedelta(days=each)).isoformat()}" for each in days]
        deprecations = Deprecations(
            ends,
            tenants,
            self._storage.port(SigningKeys),
            self._storage.port(Audit),
            self._clock,
            StructuredLogger(self.log.append, self._clock),
        )
        try:
            await deprecations.check()
        except ConfigError:
            return False
        await deprecations.announce()
        return True


@pytest.mark.requirement("MC-VER-01")
@pytest.mark.parametrize(("days", "starts"), [(-1, False), (0, False), (29.9, False), (30, True), (400, True)])
async def test_an_end_that_nobody_was_told_of_has_to_be_thirty_days_away(
    storage: Storage, clock: ManualClock, days: float, starts: bool
) -> None:
    server = Server(storage, clock)
    assert await server.starts(days) is starts
    assert len(await storage.port(Audit).page(10)) == (2 if starts else 0)


@pytest.mark.requirement("MC-VER-01")
@pytest.mark.parametrize("tenants", [("acme", "globex"), ()])
async def test_an_end_that_was_announced_in_time_is_accepted_by_every_later_start(
    storage: Storage, clock: ManualClock, tenants: tuple[str, ...]
) -> None:
    server = Server(storage, clock)
    assert await server.starts(40, tenants=tenants)
    assert server.log == []
    for days in (15, 20, 10):
        clock.advance(days * DAY)
        assert await server.starts(40, tenants=tenants)
    said = [(entry["message"], entry["daysLeft"]) for entry in server.log if isinstance(entry, dict)]
    assert said == [("a version of an action ends in less than 30 days", left) for left in (25, 5)]


@pytest.mark.requirement("MC-VER-01")
async def test_an_end_that_is_moved_needs_its_notice_only_if_it_comes_earlier(
    storage: Storage, clock: ManualClock
) -> None:
    server = Server(storage, clock)
    assert await server.starts(60)
    clock.advance(35 * DAY)
    assert not await server.starts(59)
    assert await server.starts(61)
    assert await server.starts(65)
