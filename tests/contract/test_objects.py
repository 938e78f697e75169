"""The contract of the ports to artifacts, for every engine, also out of several processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from itertools import cycle
from pathlib import Path

import pytest
from msgspec.structs import replace

from dragoman.errors import OverQuota, QuotaExceeded, StorageBusy, StorageUnavailable
from dragoman.gateway.objects import (
    CLAIM_SECONDS,
    GOING_SECONDS,
    SMALLEST_CHARGE,
    LinkKey,
    LinkKeys,
    ObjectExpiry,
    ObjectRecords,
    ObjectStore,
    StoredObject,
    object_key,
)
from dragoman.knowledge.port import Documents
from dragoman.storage.port import Storage
from tests.contract.engines import SITES, opened_storages

NOW = 1_700_000_000.0
DAY = 86_400.0
PLENTY = 10**12
CONTENT = b"Some content, \x00\xff\n" * 40_000
HASH = sha256(CONTENT).hexdigest()
KEY = object_key("acme", HASH)
ENTRY = StoredObject(
    tenant="acme", sha256=HASH, mime="text/plain", size=len(CONTENT), uploaded_at=NOW, expires_at=NOW + DAY
)
SMALL = replace(ENTRY, size=10)


@pytest.fixture(params=SITES, ids=str)
async def storages(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Storage]]:
    engine, count = request.param
    async with opened_storages(engine, tmp_path, count=count) as storages:
        yield storages


@pytest.fixture
def store(storages: list[Storage]) -> ObjectStore:
    return storages[0].port(ObjectStore)


@pytest.fixture
def records(storages: list[Storage]) -> ObjectRecords:
    return storages[0].port(ObjectRecords)


@pytest.fixture
def expiry(storages: list[Storage]) -> ObjectExpiry:
    return storages[-1].port(ObjectExpiry)


async def pieces(content: bytes = CONTENT, size: int = 100_001) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def put(store: ObjectStore, key: str = KEY, content: bytes = CONTENT) -> None:
    await (await store.write(pieces(content))).commit(key)


async def content_of(store: ObjectStore, key: str = KEY, start: int = 0, end: int | None = None) -> bytes:
    return b"".join([piece async for piece in store.read(key, start, end)])


def files_in(folder: Path) -> list[Path]:
    """Those of artifacts."""
    return [path for path in folder.rglob("*") if path.is_file() and "dragoman.db" not in path.name]


def named(number: int, tenant: str = "acme") -> StoredObject:
    return replace(ENTRY, tenant=tenant, sha256=sha256(str(number).encode()).hexdigest(), size=1000)


async def keep(records: ObjectRecords, entry: StoredObject = ENTRY, now: float = NOW) -> None:
    await records.claim(entry, PLENTY, now)
    assert await records.complete(entry)


# Answers.


async def test_answers_do_not_count_among_the_artifacts_of_their_tenant(storages: list[Storage]) -> None:
    records, expiry, kept = (
        storages[0].port(ObjectRecords),
        storages[-1].port(ObjectExpiry),
        storages[-1].port(Documents).kept_answers,
    )
    answer, artifact, room = replace(SMALL, is_answer=True), named(1), 2 * SMALLEST_CHARGE - 1
    assert await records.claim(answer, room, NOW)
    assert await records.claim(artifact, room, NOW)
    assert await kept("acme") == SMALLEST_CHARGE
    with pytest.raises(QuotaExceeded) as refused:
        await records.claim(replace(named(2), is_answer=True), room, NOW)
    assert (refused.value.details or {})["reason"] == "answer_quota"
    with pytest.raises(OverQuota):
        await records.claim(SMALL, room, NOW)  # Whoever sends what an answer had pays for it.
    assert not await records.claim(SMALL, PLENTY, NOW)
    assert await kept("acme") == 0
    assert await records.claim(replace(named(2), is_answer=True), room, NOW)
    await expiry.forget(await expiry.expire(NOW + CLAIM_SECONDS, 10))
    assert await kept("acme") == 0
    assert await records.claim(named(3), SMALLEST_CHARGE, NOW)


# Contents.


@pytest.mark.requirement("MC-ART-01")
async def test_a_draft_knows_its_hash_and_is_found_by_nobody_before_it_is_committed(storages: list[Storage]) -> None:
    store, other = storages[0].port(ObjectStore), storages[-1].port(ObjectStore)
    seen: list[bytes] = []
    draft = await store.write(pieces())
    await draft.inspect(lambda view: seen.append(bytes(view)))
    assert (draft.sha256, draft.size, seen, await other.size(KEY)) == (HASH, len(CONTENT), [CONTENT], None)
    await draft.commit(KEY)
    draft.discard()
    assert (await other.size(KEY), await content_of(other)) == (len(CONTENT), CONTENT)


async def test_an_empty_object_is_one(store: ObjectStore) -> None:
    draft = await store.write(pieces(b""))
    seen: list[bytes] = []
    await draft.inspect(lambda view: seen.append(bytes(view)))
    await draft.commit(KEY)
    assert (seen, await store.size(KEY), await content_of(store)) == ([b""], 0, b"")


@pytest.mark.parametrize(("start", "end"), [(0, 1), (5, 5), (0, None), (300_000, 300_007), (639_990, None)])
async def test_any_part_of_an_object_can_be_read(store: ObjectStore, start: int, end: int | None) -> None:
    await put(store)
    assert await content_of(store, KEY, start, end) == CONTENT[start:end]


async def test_content_that_is_sent_again_takes_the_place_of_the_first(store: ObjectStore) -> None:
    await put(store, content=b"damaged")
    await put(store)
    assert await content_of(store) == CONTENT


async def test_a_discarded_draft_leaves_nothing_and_cannot_be_found(store: ObjectStore, tmp_path: Path) -> None:
    draft = await store.write(pieces())
    draft.discard()
    draft.discard()
    assert await store.size(KEY) is None
    assert files_in(tmp_path) == []


async def test_pieces_that_fail_leave_nothing(store: ObjectStore, tmp_path: Path) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield CONTENT
        raise LookupError("the client has left")

    with pytest.raises(LookupError, match="the client has left"):
        await store.write(failing())
    assert files_in(tmp_path) == []


async def test_a_deleted_object_is_gone_and_can_be_deleted_again(store: ObjectStore) -> None:
    await put(store)
    await store.delete(KEY)
    await store.delete(KEY)
    assert await store.size(KEY) is None
    with pytest.raises(StorageUnavailable):
        await content_of(store)


@pytest.mark.parametrize(
    "key",
    [
        "",
        HASH,
        f"../{HASH}",
        f"{'a' * 32}/../{HASH}",
        f"{'a' * 32}/{HASH}/",
        f"{'a' * 32}/{HASH}\n",
        f"/{'a' * 31}/{HASH}",
        f"{'a' * 32}/{HASH.upper()}",
        f"{'a' * 32}\\{HASH}",
        f"{'a' * 32}/{'.' * 64}",
    ],
)
async def test_what_is_no_key_leads_nowhere(store: ObjectStore, key: str) -> None:
    draft = await store.write(pieces())
    with pytest.raises(ValueError, match="is no key"):
        await draft.commit(key)
    draft.discard()
    for asked in (store.size(key), store.delete(key), content_of(store, key)):
        with pytest.raises(ValueError, match="is no key"):
            await asked


def test_the_key_of_an_object_shows_nothing_of_its_tenant_and_differs_for_each() -> None:
    keys = {object_key(tenant, HASH) for tenant in ("acme", "ACME", "../acme", "acme/", "")}
    assert len(keys) == 5
    assert all("acme" not in key.lower() and key.count("/") == 1 for key in keys)


# Rows.


@pytest.mark.requirement("MC-ART-01")
async def test_an_object_is_found_only_when_its_content_is_there(storages: list[Storage]) -> None:
    records, other = storages[0].port(ObjectRecords), storages[-1].port(ObjectRecords)
    assert await records.claim(ENTRY, PLENTY, NOW)
    assert await other.find(KEY, NOW) is None
    assert not await other.pin(KEY, NOW + 9 * DAY, NOW)
    assert await records.complete(ENTRY)
    assert await other.find(KEY, NOW) == ENTRY
    assert await other.find(object_key("other", HASH), NOW) is None


async def test_an_object_is_not_found_from_the_moment_on_at_which_it_expires(records: ObjectRecords) -> None:
    await keep(records)
    assert await records.find(KEY, NOW + DAY - 0.5) == ENTRY
    assert await records.find(KEY, NOW + DAY) is None
    assert not await records.pin(KEY, NOW + 9 * DAY, NOW + DAY)


async def test_an_object_that_is_sent_again_is_kept_for_longer_and_counts_once(records: ObjectRecords) -> None:
    limit = ENTRY.charge
    assert await records.claim(ENTRY, limit, NOW)
    assert await records.complete(ENTRY)
    again = replace(ENTRY, mime="text/markdown", uploaded_at=NOW + 60, expires_at=NOW + 60 + DAY)
    assert not await records.claim(again, limit, NOW + 60)
    assert await records.find(KEY, NOW + 60) == ENTRY
    assert await records.complete(again)
    assert await records.find(KEY, NOW + 60) == again


async def test_a_pin_makes_an_object_live_longer_and_never_shorter(records: ObjectRecords) -> None:
    await keep(records)
    assert await records.pin(KEY, NOW + 3 * DAY, NOW)
    assert await records.pin(KEY, NOW + 2 * DAY, NOW)
    assert await records.find(KEY, NOW + 3 * DAY - 1) == replace(ENTRY, expires_at=NOW + 3 * DAY)
    await keep(records, now=NOW)
    assert await records.find(KEY, NOW + 3 * DAY - 1) == replace(ENTRY, expires_at=NOW + 3 * DAY)


async def test_a_tenant_has_no_more_than_its_quota_and_small_objects_count_as_a_page(storages: list[Storage]) -> None:
    all_records = [storage.port(ObjectRecords) for storage in storages]
    limit = 10 * SMALLEST_CHARGE
    claims = [
        each.claim(named(number), limit, NOW) for each, number in zip(cycle(all_records), range(15), strict=False)
    ]
    came_to = await asyncio.gather(*claims, return_exceptions=True)
    refused = [each for each in came_to if isinstance(each, OverQuota)]
    assert (came_to.count(True), len(refused)) == (10, 5)
    assert {(each.limit, each.actual) for each in refused} == {(limit, 11 * SMALLEST_CHARGE)}
    assert await all_records[0].claim(named(1, "other"), limit, NOW)


async def test_what_was_deleted_no_longer_counts(records: ObjectRecords, expiry: ObjectExpiry) -> None:
    limit = SMALLEST_CHARGE
    await keep(records, SMALL)
    with pytest.raises(OverQuota):
        await records.claim(named(1), limit, NOW + DAY)
    keys = await expiry.expire(NOW + DAY, 10)
    with pytest.raises(OverQuota):
        await records.claim(named(1), limit, NOW + DAY)
    await expiry.forget(keys)
    assert await records.claim(named(1), limit, NOW + DAY)


async def test_an_object_is_released_only_by_whoever_sent_it_last(records: ObjectRecords, expiry: ObjectExpiry) -> None:
    await keep(records)
    again = replace(ENTRY, uploaded_at=NOW + 1, expires_at=NOW + 1 + DAY)
    await keep(records, again)
    assert not await records.release(ENTRY, NOW + 2)
    await records.pin(KEY, NOW + 5 * DAY, NOW + 2)
    assert not await records.release(again, NOW + 2)
    assert await records.release(replace(again, expires_at=NOW + 5 * DAY), NOW + 2)
    assert await records.find(KEY, NOW + 2) is None
    assert await expiry.expire(NOW + 2, 10) == [KEY]


# What has expired.


async def test_what_goes_is_neither_found_nor_claimed_nor_completed(
    records: ObjectRecords, expiry: ObjectExpiry
) -> None:
    await keep(records)
    await records.claim(named(1), PLENTY, NOW)
    assert sorted(await expiry.expire(NOW + DAY, 10)) == sorted((KEY, named(1).key))
    assert await records.find(KEY, NOW) is None
    for entry in (ENTRY, named(1)):
        with pytest.raises(StorageBusy):
            await records.claim(entry, PLENTY, NOW + DAY)
        assert not await records.complete(entry)
    await expiry.forget([KEY])
    assert await records.claim(ENTRY, PLENTY, NOW + DAY)


async def test_only_what_goes_is_forgotten(records: ObjectRecords, expiry: ObjectExpiry) -> None:
    await keep(records)
    await expiry.forget([KEY, named(1).key])
    assert await records.find(KEY, NOW) == ENTRY


async def test_a_claim_that_comes_to_nothing_expires(records: ObjectRecords, expiry: ObjectExpiry) -> None:
    await records.claim(ENTRY, PLENTY, NOW)
    assert await expiry.expire(NOW + CLAIM_SECONDS - 1, 10) == []
    assert await expiry.expire(NOW + CLAIM_SECONDS, 10) == [KEY]


async def test_an_upload_keeps_an_expired_object_from_being_deleted_meanwhile(
    records: ObjectRecords, expiry: ObjectExpiry
) -> None:
    await keep(records)
    assert not await records.claim(ENTRY, PLENTY, NOW + DAY)
    assert await expiry.expire(NOW + DAY, 10) == []


async def test_a_deletion_that_was_not_finished_is_taken_up_after_a_minute(
    records: ObjectRecords, expiry: ObjectExpiry
) -> None:
    await keep(records)
    assert await expiry.expire(NOW + DAY, 10) == [KEY]
    assert await expiry.expire(NOW + DAY + GOING_SECONDS - 1, 10) == []
    assert await expiry.expire(NOW + DAY + GOING_SECONDS, 10) == [KEY]


async def test_objects_expire_in_steps_the_oldest_first(records: ObjectRecords, expiry: ObjectExpiry) -> None:
    entries = [replace(named(number), expires_at=NOW + DAY + number) for number in range(5)]
    for entry in reversed(entries):
        await keep(records, entry)
    assert await expiry.expire(NOW + DAY + 3, 3) == [entry.key for entry in entries[:3]]
    assert await expiry.expire(NOW + DAY + 3, 3) == [entries[3].key]
    assert await expiry.expire(NOW + DAY + 3, 3) == []


async def test_objects_that_no_row_names_are_condemned_and_others_are_not(
    records: ObjectRecords, expiry: ObjectExpiry
) -> None:
    await keep(records)
    await records.claim(named(1), PLENTY, NOW)
    nameless = named(2).key
    assert await expiry.condemn([KEY, named(1).key, nameless], NOW) == 1
    with pytest.raises(StorageBusy):
        await records.claim(named(2), PLENTY, NOW)
    assert await expiry.expire(NOW, 10) == [nameless]
    await expiry.forget([nameless])
    assert await records.claim(named(2), PLENTY, NOW)


# Keys of links.


@pytest.mark.requirement("MC-ART-01")
async def test_all_processes_get_the_same_key_of_a_day(storages: list[Storage]) -> None:
    keys = [storage.port(LinkKeys) for storage in storages]
    fresh = [LinkKey(f"{number:016x}", bytes([number]) * 32, NOW) for number in range(10)]
    renewed = await asyncio.gather(
        *(each.renew(key, NOW - DAY, NOW - 2 * DAY) for each, key in zip(cycle(keys), fresh, strict=False))
    )
    assert len({tuple(each) for each in renewed}) == 1
    assert len(renewed[0]) == 1
    assert [await each.all() for each in keys] == [renewed[0]] * len(keys)


async def test_an_old_key_stays_beside_the_new_one_until_it_is_too_old(storages: list[Storage]) -> None:
    keys, other = storages[0].port(LinkKeys), storages[-1].port(LinkKeys)
    old, new, newest = (LinkKey(f"k{number}", bytes([number]) * 32, NOW + number * DAY) for number in range(3))
    await keys.renew(old, NOW - 1, NOW - DAY)
    assert await keys.renew(new, NOW + 1, NOW) == [new, old]
    assert await other.all() == [new, old]
    assert await other.renew(newest, NOW + 1, NOW) == [new, old]
    assert await other.renew(newest, NOW + DAY + 1, NOW + 1) == [newest, new]
