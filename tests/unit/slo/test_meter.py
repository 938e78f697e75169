"""The meter: what becomes a status, what is stored, and how much of it there can be."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import inf
from pathlib import Path

import pytest

from dragoman.errors import StorageBusy
from dragoman.replies.vocabulary import STATUSES, ContractCode
from dragoman.slo.meter import ABORTED, MOST_TENANTS, STRANGER, ActionMeter, Requested, status_of
from dragoman.slo.part import LevelKeeping
from dragoman.slo.port import DAY, LevelKey, ServiceLevels
from dragoman.storage.port import PurgeClock
from dragoman.testing import ManualClock
from tests.contract.engines import opened_storages
from tests.support.purge_clock import let_pass

ASKED = Requested("knowledge.create_document", "acme", "svc:writer", "external")


@pytest.mark.parametrize("code", STATUSES)
def test_a_request_fails_because_of_the_server_or_is_refused(code: ContractCode) -> None:
    assert status_of(code) == ("FAILED" if STATUSES[code] >= 500 else "REFUSED")


def test_the_other_statuses() -> None:
    assert (status_of(""), status_of(ABORTED)) == ("SUCCESS", "ABORTED")
    assert status_of(ContractCode.EXPIRED, was_accepted=True) == "FAILED"


def test_what_was_taken_is_not_taken_again_and_can_be_put_back() -> None:
    meter = ActionMeter()
    meter.ended(ASKED, "", 7.0)
    taken = meter.take()
    ended = LevelKey("acme", ASKED.action, "external", "SUCCESS")
    assert taken == {ended: 1, ended._replace(figure="latency", bucket=1): 1}
    assert meter.take() == {}
    meter.ended(ASKED, "", 7.0)
    meter.put_back(taken)
    assert meter.take()[ended] == 2


@pytest.mark.requirement("MC-METRIC-03")
def test_a_latency_is_in_the_bucket_of_its_milliseconds() -> None:
    meter = ActionMeter()
    for took_ms in (1_000.0, 1_001.0, 1_500.0):
        meter.ended(ASKED, "", took_ms)
    (latency,) = (each for each in meter.gauges() if each.name == "a2a_latency_ms")
    rows = latency.read()
    assert isinstance(rows, dict)
    ((*buckets, total),) = rows.values()
    counted = dict(zip((*latency.bounds, inf), buckets, strict=True))
    assert {bound: count for bound, count in counted.items() if count} == {1_000.0: 1, 2_000.0: 2}
    assert total == 3_501.0


def test_a_flood_of_tenants_is_bounded() -> None:
    meter = ActionMeter()
    for number in range(3 * MOST_TENANTS):
        meter.ended(ASKED._replace(tenant=f"t{number}"), "", 1.0)
    meter.ended(STRANGER, ContractCode.UNAUTHORIZED, 1.0)
    counts = {key: count for key, count in meter.take().items() if key.figure != "latency"}
    assert len({key.tenant for key in counts}) == MOST_TENANTS + 1
    assert sum(counts.values()) == 3 * MOST_TENANTS + 1


def test_a_long_name_is_cut() -> None:
    meter = ActionMeter()
    meter.ended(ASKED._replace(principal="x" * 10_000), "", 1.0)
    shown = meter.gauges()[0].read()
    assert isinstance(shown, dict)
    assert [len(labels[2]) for labels in shown] == [128]


async def test_what_cannot_be_stored_is_stored_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(minute: int, counts: Mapping[LevelKey, int]) -> None:
        raise StorageBusy("the storage is busy")

    async with opened_storages("memory", tmp_path) as (storage,):
        meter, levels = ActionMeter(), storage.port(ServiceLevels)
        clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        keeping = LevelKeeping(meter, levels, clock, storage.port(PurgeClock))
        meter.ended(ASKED, "", 1.0)
        with monkeypatch.context() as patch:
            patch.setattr(levels, "add", busy)
            with pytest.raises(StorageBusy):
                await keeping.keep()
        meter.ended(ASKED, "", 1.0)
        assert await keeping.keep() == {"counts": 2}
        assert await keeping.keep() == {"counts": 0}
        assert set((await levels.read(0)).values()) == {2}


async def test_a_clock_that_is_a_year_ahead_for_a_moment_forgets_no_counts(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened_storages("memory", tmp_path, clock) as (storage,):
        meter, levels, purge = ActionMeter(), storage.port(ServiceLevels), storage.port(PurgeClock)
        keeping = LevelKeeping(meter, levels, clock, purge)
        meter.ended(ASKED, "", 1.0)
        await keeping.keep()
        await purge.now()
        clock.jump(365 * DAY * 60)
        assert await keeping.condense() == {"rows": 0}
        clock.jump(-365 * DAY * 60)
        assert set((await levels.read(0)).values()) == {1}
        await let_pass(purge, clock, 365 * DAY * 60)
        await keeping.condense()
        assert await levels.read(0) == {}
