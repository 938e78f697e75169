"""How many requests a minute, for all processes together."""

from __future__ import annotations

import asyncio

import pytest

from dragoman.errors import RateLimited, StorageFailed
from dragoman.gateway.port import Quotas
from dragoman.gateway.rates import MOST_BUCKETS, WINDOW_SECONDS, GatewayRates, Remaining
from dragoman.testing import ManualClock
from tests.support.plain_quotas import PlainQuotas

A, B = "principal a", "tenant t"


class Store:
    """Quotas that can be made to wait or to fail, and that count how often they are asked."""

    def __init__(self) -> None:
        self.quotas = PlainQuotas()
        self.asked: list[int] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.fails = False

    async def take(self, bucket: str, window: int, wanted: int, limit: int) -> tuple[int, int]:
        self.asked.append(wanted)
        await self.is_open.wait()
        if self.fails:
            raise StorageFailed("no disk")
        return await self.quotas.take(bucket, window, wanted, limit)


def rates_of(quotas: Quotas | None = None) -> tuple[GatewayRates, ManualClock]:
    clock = ManualClock()
    return GatewayRates(quotas or PlainQuotas(), clock), clock


async def taken(rates: GatewayRates, *wanted: tuple[str, int], times: int = 10_000) -> int:
    """How many requests one after the other are let in, of so many."""
    for number in range(times):
        try:
            await rates.take(*wanted)
        except RateLimited:
            return number
    return times


async def settle() -> None:
    """Until nothing is left to be fetched."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.requirement("MC-ERR-02")
@pytest.mark.parametrize("limit", [1, 2, 3, 11, 12, 13, 120, 600])
async def test_as_many_requests_are_let_in_as_the_limit_says(limit: int) -> None:
    rates, clock = rates_of()
    assert await taken(rates, (A, limit)) == limit
    assert await taken(rates, (A, limit)) == 0
    assert await taken(rates, (B, limit)) == limit
    clock.advance(WINDOW_SECONDS)
    assert await taken(rates, (A, limit)) == limit


@pytest.mark.requirement("MC-ERR-02")
async def test_a_client_is_told_when_to_come_back() -> None:
    rates, clock = rates_of()
    clock.advance(12.25)
    await taken(rates, (A, 5))
    with pytest.raises(RateLimited) as refused:
        await rates.take((A, 5))
    assert refused.value.details == {"reason": "rate_limited", "limit": 5, "retryable": True, "retryAfterMs": 47_750}
    clock.advance(47.7499)
    with pytest.raises(RateLimited) as refused:
        await rates.take((A, 5))
    assert refused.value.details is not None
    assert refused.value.details["retryAfterMs"] == 1
    clock.advance(0.0001)
    assert await rates.take((A, 5)) == Remaining(5, 4)


async def test_a_client_is_told_how_many_are_left_of_the_limit_that_is_nearest() -> None:
    rates, _ = rates_of()
    assert [(await rates.take((A, 120))).remaining for _ in range(30)] == list(range(119, 89, -1))
    assert await rates.take((B, 600), (A, 120)) == Remaining(120, 89)
    assert await rates.take((B, 60), (A, 120)) == Remaining(60, 58)


@pytest.mark.requirement("MC-ERR-02")
async def test_a_request_that_is_refused_counts_nowhere() -> None:
    rates, _ = rates_of()
    assert await taken(rates, (B, 10), (A, 4)) == 4
    assert await taken(rates, (B, 10), (A, 4)) == 0
    assert await taken(rates, (B, 10)) == 6


@pytest.mark.requirement("MC-ERR-02")
@pytest.mark.parametrize("limit", [3, 120, 600])
async def test_processes_with_one_store_share_the_limit(limit: int) -> None:
    quotas = PlainQuotas()
    processes = [rates_of(quotas)[0] for _ in range(4)]
    let_in = 0
    for number in range(limit * 4):
        try:
            await processes[number % 4].take((A, limit))
            let_in += 1
        except RateLimited:
            pass
    assert let_in == limit


@pytest.mark.requirement("MC-ERR-02")
async def test_what_other_processes_hold_and_do_not_use_is_little() -> None:
    quotas = PlainQuotas()
    idle, busy = rates_of(quotas)[0], rates_of(quotas)[0]
    await idle.take((A, 120))
    await settle()
    assert 120 - 20 <= await taken(busy, (A, 120)) <= 119


@pytest.mark.requirement("MC-ERR-02")
async def test_many_requests_at_the_same_time_are_no_more_than_the_limit() -> None:
    store = Store()
    processes = [rates_of(store)[0] for _ in range(2)]
    requests = [processes[number % 2].take((A, 100)) for number in range(300)]
    results = await asyncio.gather(*requests, return_exceptions=True)
    assert sum(isinstance(each, Remaining) for each in results) == 100
    assert {type(each) for each in results} == {Remaining, RateLimited}


async def test_quota_is_taken_in_blocks_that_grow_and_become_smaller_again() -> None:
    store = Store()
    rates, _ = rates_of(store)
    await taken(rates, (A, 600))
    largest = store.asked.index(50)
    assert store.asked[: largest + 1] == [1, 2, 4, 8, 16, 32, 50]
    assert store.asked[largest:] == sorted(store.asked[largest:], reverse=True)
    assert store.asked[-1] == 1
    assert len(store.asked) < 60
    asked = len(store.asked)
    assert await taken(rates, (A, 600)) == 0
    assert len(store.asked) == asked  # Who is refused costs nothing.


async def test_only_the_first_request_of_a_minute_waits_for_the_store() -> None:
    store = Store()
    rates, _ = rates_of(store)
    store.is_open.clear()
    first = [asyncio.ensure_future(rates.take((A, 120))) for _ in range(3)]
    await settle()
    assert (any(each.done() for each in first), len(store.asked)) == (False, 1)
    store.is_open.set()
    await asyncio.gather(*first)
    await settle()
    store.is_open.clear()
    asked = len(store.asked)
    for _ in range(2):
        waiting = rates.take((A, 120))
        with pytest.raises(StopIteration):
            waiting.send(None)  # It ends without having waited once.
    await settle()
    assert len(store.asked) <= asked + 1
    store.is_open.set()
    await settle()
    assert await taken(rates, (A, 120)) == 115


@pytest.mark.parametrize("workers", [2, 4, 8])
async def test_what_idle_processes_hold_is_little(workers: int) -> None:
    quotas = PlainQuotas()
    processes = [rates_of(quotas)[0] for _ in range(workers)]
    for rates in processes:
        assert await taken(rates, (A, 120), times=1) == 1
        await settle()
    assert 120 - 2 * workers <= workers + await taken(processes[0], (A, 120)) <= 120


async def test_a_store_that_fails_is_a_matter_for_who_needs_it() -> None:
    store = Store()
    rates, _ = rates_of(store)
    store.fails = True
    with pytest.raises(StorageFailed):
        await rates.take((A, 120))
    store.fails = False
    await rates.take((A, 120))
    store.fails = True
    await settle()  # Nobody hears of a block that is fetched ahead and cannot be had.
    with pytest.raises(StorageFailed):
        await rates.take((A, 120))
    store.fails = False
    assert await taken(rates, (A, 120)) == 119


async def test_a_client_that_leaves_takes_no_block_away_from_others() -> None:
    store = Store()
    rates, _ = rates_of(store)
    store.is_open.clear()
    leaving, staying = (asyncio.ensure_future(rates.take((A, 12))) for _ in range(2))
    await settle()
    leaving.cancel()
    await settle()
    store.is_open.set()
    assert (await staying).limit == 12
    assert await taken(rates, (A, 12)) == 11


@pytest.mark.slow
async def test_as_many_buckets_as_are_kept_are_bounded_and_the_store_remembers_the_rest() -> None:
    rates, _ = rates_of()
    assert await taken(rates, (A, 3)) == 3
    for number in range(MOST_BUCKETS + 10):
        await rates.take((f"principal {number}", 3))
    assert len(rates._buckets) == MOST_BUCKETS
    assert await taken(rates, (A, 3)) == 0
