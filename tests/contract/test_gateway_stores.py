"""The contract of `SigningKeys` and `Quotas`, for every engine, also out of several processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import cycle
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.gateway.port import Nonce, Quotas, SigningKey, SigningKeys
from dragoman.knowledge.port import Audit, AuditEvent
from dragoman.storage.port import PurgeClock, Storage
from dragoman.testing import ManualClock
from tests.contract.engines import SITES, opened_storages
from tests.support.purge_clock import let_pass

NOW = 1_700_000_000.0
KEY = SigningKey(kid="k1", public="x" * 43, tenant="acme", roles=("owner", "agent"), created_at=NOW, line="k0")
MANY = 50


@pytest.fixture(params=SITES, ids=str)
async def storages(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[list[Storage]]:
    engine, count = request.param
    async with opened_storages(engine, tmp_path, clock, count) as storages:
        yield storages


@pytest.fixture
def all_keys(storages: list[Storage]) -> list[SigningKeys]:
    """The same keys, as each process has them."""
    return [storage.port(SigningKeys) for storage in storages]


@pytest.fixture
def keys(all_keys: list[SigningKeys]) -> SigningKeys:
    return all_keys[0]


@pytest.fixture
def all_quotas(storages: list[Storage]) -> list[Quotas]:
    return [storage.port(Quotas) for storage in storages]


# Keys.


@pytest.mark.requirement("MC-SEC-04")
async def test_a_key_is_kept_as_it_was_given_and_a_second_of_its_name_is_not(all_keys: list[SigningKeys]) -> None:
    keys = all_keys[0]
    assert await keys.find("k1") is None
    assert await keys.add(KEY)
    assert not await keys.add(KEY)
    assert not await keys.add(replace(KEY, tenant="other", public="y" * 43))
    for each in all_keys:
        assert await each.find("k1") == KEY
        assert await each.find("K1") is None


@pytest.mark.requirement("MC-SEC-04")
async def test_several_keys_of_a_tenant_are_there_at_a_time_the_oldest_first(keys: SigningKeys) -> None:
    old, odd = replace(KEY, kid="k0", created_at=NOW - 1), replace(KEY, kid="ü\0'", roles=())
    for key in (KEY, odd, old):
        assert await keys.add(key)
    assert await keys.list() == [old, KEY, odd]


@pytest.mark.requirement("MC-SEC-04")
async def test_a_revoked_key_stays_in_the_list_and_is_revoked_once(all_keys: list[SigningKeys]) -> None:
    keys, other = all_keys[0], all_keys[-1]
    await keys.add(KEY)
    assert not await keys.revoke("missing", NOW)
    assert await keys.revoke("k1", NOW + 5)
    assert not await keys.revoke("k1", NOW + 9)
    assert await other.find("k1") == replace(KEY, revoked_at=NOW + 5)
    assert await other.list() == [replace(KEY, revoked_at=NOW + 5)]
    assert not await keys.add(KEY)


# Nonces.


@pytest.mark.requirement("MC-SEC-02")
async def test_the_event_of_a_change_is_noted_with_it_and_not_without_it(storages: list[Storage]) -> None:
    keys, audit = storages[0].port(SigningKeys), storages[-1].port(Audit)

    def event(name: str) -> AuditEvent:
        return AuditEvent(tenant="acme", event=name, principal="operator", subject="k", at=1.0)

    assert [await keys.add(KEY, event("first")), await keys.add(KEY, event("second"))] == [True, False]
    assert [await keys.revoke(KEY.kid, NOW, event(name)) for name in ("third", "fourth")] == [True, False]
    assert not await keys.revoke("missing", 5.0, event("fifth"))
    assert [each.event for each in await audit.page(10)] == ["third", "first"]


async def test_a_nonce_can_be_used_once_with_each_key(all_keys: list[SigningKeys]) -> None:
    keys, other = all_keys[0], all_keys[-1]
    await keys.add(KEY)
    await keys.add(replace(KEY, kid="k2"))
    assert await keys.spend(Nonce("k1", "nonce", NOW + 60, NOW))
    assert not await keys.spend(Nonce("k1", "nonce", NOW + 60, NOW))
    assert not await other.spend(Nonce("k1", "nonce", NOW + 600, NOW + 59))
    assert await keys.spend(Nonce("k1", "Nonce", NOW + 60, NOW))
    assert await other.spend(Nonce("k2", "nonce", NOW + 60, NOW))


@pytest.mark.requirement("MC-SEC-02")
async def test_of_fifty_requests_with_one_nonce_at_the_same_time_one_is_told_so(all_keys: list[SigningKeys]) -> None:
    await all_keys[0].add(KEY)
    spending = [
        keys.spend(Nonce("k1", "nonce", NOW + 60, NOW)) for keys, _ in zip(cycle(all_keys), range(MANY), strict=False)
    ]
    assert sorted(await asyncio.gather(*spending)) == [*[False] * (MANY - 1), True]


@pytest.mark.requirement("MC-SEC-02", "MC-SEC-04")
async def test_nothing_can_be_used_with_a_key_that_is_revoked_or_unknown(all_keys: list[SigningKeys]) -> None:
    await all_keys[0].add(KEY)
    assert not await all_keys[0].spend(Nonce("missing", "nonce", NOW + 60, NOW))
    assert await all_keys[-1].spend(Nonce("k1", "first", NOW + 60, NOW))
    await all_keys[0].revoke("k1", NOW + 100)
    for keys in all_keys:
        assert not await keys.spend(Nonce("k1", "second", NOW + 60, NOW))


async def test_a_nonce_is_forgotten_when_its_token_has_expired_for_certain(
    all_keys: list[SigningKeys], storages: list[Storage], clock: ManualClock
) -> None:
    async def spend(number: int) -> bool:
        now = clock.now().timestamp()
        return await all_keys[number % len(all_keys)].spend(Nonce("k1", f"n{number}", now + 60, now))

    await all_keys[0].add(KEY)
    assert [await spend(number) for number in range(3)] == [True] * 3
    clock.jump(86_400)  # Whoever has a token again when the clock is right must not be able to use it again.
    assert await spend(3)
    clock.jump(-86_400)
    assert [await spend(number) for number in range(3)] == [False] * 3
    await let_pass(storages[0].port(PurgeClock), clock, 60)
    assert [await spend(number) for number in range(3)] == [True] * 3


# Quotas.


@pytest.mark.requirement("MC-ERR-02")
async def test_what_is_taken_is_never_more_than_the_limit(all_quotas: list[Quotas]) -> None:
    quotas, other = all_quotas[0], all_quotas[-1]
    assert await quotas.take("b", 7, 4, 10) == (4, 4)
    assert await other.take("b", 7, 4, 10) == (4, 8)
    assert await quotas.take("b", 7, 4, 10) == (2, 10)
    assert await other.take("b", 7, 4, 10) == (0, 10)
    assert await quotas.take("another", 7, 4, 10) == (4, 4)
    assert (await quotas.take("b", 7, 4, 5))[0] == 0


async def test_a_new_window_begins_with_nothing_taken(all_quotas: list[Quotas]) -> None:
    for window in (7, 8, 100):
        assert await all_quotas[0].take("b", window, 10, 10) == (10, 10)
        assert await all_quotas[-1].take("b", window, 1, 10) == (0, 10)


@pytest.mark.requirement("MC-ERR-02")
async def test_many_takers_at_the_same_time_get_the_limit_together(all_quotas: list[Quotas]) -> None:
    takers = zip(cycle(all_quotas), range(1, MANY + 1), strict=False)
    taken = await asyncio.gather(*(quotas.take("b", 7, 1 + number % 7, 100) for quotas, number in takers))
    assert sum(granted for granted, _ in taken) == 100
    assert max(total for _, total in taken) == 100
