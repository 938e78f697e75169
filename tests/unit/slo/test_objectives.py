"""The objectives: from counts to figures, and whether they hold, at their bounds and beyond."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from dragoman.slo.meter import ABORTED, ACK, BOUNDS_MS, DEAD, DONE, FAILED, LATENCY, REFUSED, RETRIES, SUCCESS
from dragoman.slo.objectives import Report, read_report
from dragoman.slo.port import DAY, LevelKey, ServiceLevels
from tests.contract.engines import opened_storages

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC).timestamp()
MINUTE = int(NOW // 60)
ACTION = "knowledge.create_document"
SLOWEST = len(BOUNDS_MS)


def key(figure: str, bucket: int = 0, tenant: str = "acme", caller: str = "external") -> LevelKey:
    return LevelKey(tenant, ACTION, caller, figure, bucket)


def within(milliseconds: float) -> int:
    """The bucket of values up to a bound."""
    return BOUNDS_MS.index(milliseconds)


async def report(*added: tuple[int, dict[LevelKey, int]], tenant: str | None = None) -> Report:
    async with opened_storages("memory", Path()) as (storage,):
        levels = storage.port(ServiceLevels)
        for minutes_ago, counts in added:
            await levels.add(MINUTE - minutes_ago, counts)
        return await read_report(levels, NOW, lambda action: 30_000.0 if action == ACTION else 1.0, tenant)


def broken(found: Report) -> list[tuple[str, str]]:
    return [(each.name, each.window) for each in found.objectives if not each.holds]


async def test_without_requests_every_objective_holds() -> None:
    found = await report()
    assert found.holds
    assert {each.value for each in found.objectives} == {None}
    assert {each.availability for each in found.windows} == {None}


@pytest.mark.requirement("MC-METRIC-02")
@pytest.mark.requirement("MC-METRIC-05")
@pytest.mark.parametrize("status", [REFUSED, FAILED, ABORTED])
async def test_the_error_budget_is_one_percent_of_the_requests_of_7_days_and_of_the_quarter(status: str) -> None:
    exactly = {key(SUCCESS): 99, key(status): 1}
    found = await report((6 * DAY, exactly))
    assert broken(found) == []
    assert [each.value for each in found.objectives if each.name == "error budget"] == [0.01, 0.01]
    assert [each.budget_used for each in found.windows] == [None, 1.0, 1.0]
    more = {key(SUCCESS): 98, key(status): 2}
    assert broken(await report((6 * DAY, more))) == [("error budget", "week"), ("error budget", "quarter")]
    assert broken(await report((8 * DAY, more))) == [("error budget", "quarter")]
    assert broken(await report((60 * DAY, more))) == []


async def test_the_quarter_begins_on_its_first_day() -> None:
    found = await report()
    assert [datetime.fromtimestamp(each.since, UTC) for each in found.windows] == [
        datetime(2026, 11, 17, 12, tzinfo=UTC),
        datetime(2026, 11, 11, 12, tzinfo=UTC),
        datetime(2026, 10, 1, tzinfo=UTC),
    ]


@pytest.mark.requirement("MC-METRIC-02")
@pytest.mark.requirement("MC-METRIC-04")
async def test_at_most_one_request_in_a_thousand_of_a_day_is_a_dead_letter() -> None:
    assert broken(await report((0, {key(SUCCESS): 1000, key(DEAD): 1}))) == []
    assert broken(await report((0, {key(SUCCESS): 999, key(DEAD): 1}))) == [("dead letters", "day")]
    assert broken(await report((DAY + 1, {key(SUCCESS): 999, key(DEAD): 1}))) == []


@pytest.mark.parametrize(("caller", "most_ms"), [("internal", 1_000.0), ("external", 2_000.0)])
async def test_95_of_100_requests_are_accepted_within_the_time_for_their_kind_of_caller(
    caller: str, most_ms: float
) -> None:
    counts = {key(ACK, within(most_ms), caller=caller): 95, key(ACK, SLOWEST, caller=caller): 5}
    found = await report((DAY, counts))
    assert broken(found) == []
    assert [each.value for each in found.objectives if each.name == f"ACK P95, {caller}"] == [most_ms]
    counts[key(ACK, SLOWEST, caller=caller)] += 1
    assert broken(await report((DAY, counts))) == [(f"ACK P95, {caller}", "week")]


@pytest.mark.requirement("MC-METRIC-02")
async def test_95_of_100_jobs_are_done_60_seconds_after_their_eta() -> None:
    counts = {key(DONE, within(90_000.0)): 95, key(DONE, SLOWEST): 5}
    assert broken(await report((DAY, counts))) == []
    counts[key(DONE, SLOWEST)] += 1
    assert broken(await report((DAY, counts))) == [(f"job done P95, {ACTION}", "week")]


async def test_a_window_adds_up_what_was_counted() -> None:
    counts = {
        key(SUCCESS): 90,
        key(REFUSED): 4,
        key(REFUSED, tenant="", caller=""): 3,
        key(FAILED): 2,
        key(ABORTED): 1,
        key(RETRIES): 7,
        key(DEAD): 2,
        key(LATENCY, within(50.0)): 100,
    }
    found = (await report((0, counts))).windows[0]
    assert (found.requests, found.succeeded, found.refused, found.failed, found.aborted) == (100, 90, 7, 2, 1)
    assert (found.unauthenticated, found.dead_letters, found.retries) == (3, 2, 7)
    assert (found.availability, found.error_rate, found.dead_letter_rate) == (0.98, 0.1, 0.02)
    assert found.latency_p95_ms == pytest.approx(48.75)


async def test_one_tenant_can_be_looked_at_alone() -> None:
    counts = {key(SUCCESS): 10, key(FAILED, tenant="other"): 10}
    assert not (await report((0, counts))).holds
    assert (await report((0, counts), tenant="acme")).holds
    assert [each.requests for each in (await report((0, counts), tenant="other")).windows] == [10, 10, 10]
