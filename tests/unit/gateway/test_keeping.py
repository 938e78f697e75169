"""Artifacts are kept whole or not at all, are read by key, and end in order, whatever happens in between."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.adapters.file_objects import FileObjects
from dragoman.calls.places import Holder
from dragoman.errors import (
    Expired,
    InvalidArgument,
    MalformedEnvelope,
    NotAuthentic,
    NotFound,
    ResourceExhausted,
    StorageBusy,
    StorageCorrupt,
    StorageUnavailable,
    Unauthorized,
)
from dragoman.gateway.keeping import KeptArtifacts, Objects, StoredArtifact, open_objects
from dragoman.gateway.links import LINK_SECONDS
from dragoman.gateway.objects import ObjectExpiry, ObjectRecords, ObjectStore, object_key
from dragoman.gateway.settings import GatewayConfig
from dragoman.protocol.shape import Shape
from dragoman.storage.port import PurgeClock, Storage
from dragoman.testing import ManualClock
from tests.contract.engines import ENGINES, opened_storages
from tests.support.purge_clock import PromptPurgeClock, PromptStorage, let_pass
from tests.support.waiting import until

ACME = Holder("acme")
ARGS = {"document_id": "x", "body": "ä" * 100_000}
CONTENT = msgspec.json.encode(ARGS)
HASH = sha256(CONTENT).hexdigest()
DAY = 86_400.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=ENGINES)
async def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Storage]:
    async with opened_storages(request.param, tmp_path, clock) as storages:
        yield storages[0]


@pytest.fixture
async def on_disk(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Storage]:
    async with opened_storages("sqlite", tmp_path, clock) as storages:
        yield storages[0]


def objects_of(storage: Storage, clock: ManualClock, **settings: Any) -> Objects:
    return open_objects(PromptStorage(storage, clock), GatewayConfig(**settings), clock).objects


@pytest.fixture
def objects(storage: Storage, clock: ManualClock) -> Objects:
    return objects_of(storage, clock)


async def keep(
    objects: Objects, content: bytes = CONTENT, tenant: str = "acme", mime: str = "application/json"
) -> StoredArtifact:
    async def pieces() -> AsyncIterator[bytes]:
        yield content

    return await objects.keep(tenant, mime, pieces(), base="http://here")


def files_in(folder: Path) -> list[str]:
    artifacts = folder / "artifacts"
    return sorted(str(path.relative_to(artifacts)) for path in artifacts.rglob("*") if path.is_file())


@pytest.mark.requirement("MC-ART-01")
async def test_arguments_that_were_kept_are_read_by_key(objects: Objects, clock: ManualClock) -> None:
    stored = await keep(objects)
    now = int(clock.now().timestamp())
    assert (stored.sha256, stored.expires_at) == (HASH, now + LINK_SECONDS)
    assert stored.uri.startswith(f"http://here/mcp/artifacts/{HASH}?tenant=acme&type=application%2Fjson&expires=")
    assert await objects.resolve("acme", stored.uri, HASH.upper()) == HASH
    assert await objects.arguments(ACME, HASH) == ARGS


@pytest.mark.requirement("MC-ART-01", "MC-TEST-06")
async def test_a_link_with_another_hash_of_another_tenant_or_a_second_late_is_refused(
    objects: Objects, clock: ManualClock
) -> None:
    stored = await keep(objects)
    with pytest.raises(MalformedEnvelope, match="artifact_hash"):
        await objects.resolve("acme", stored.uri, "0" * 64)
    with pytest.raises(Unauthorized):
        await objects.resolve("other", stored.uri, HASH)
    clock.advance(LINK_SECONDS)
    with pytest.raises(Expired):
        await objects.resolve("acme", stored.uri, HASH)


async def test_the_hash_of_another_tenants_object_leads_to_nothing(objects: Objects) -> None:
    await keep(objects)
    for sha in (HASH, "0" * 64):
        with pytest.raises(NotFound) as refused:
            await objects.arguments(Holder("other"), sha)
        assert refused.value.details == {"reason": "unknown_artifact"}


@pytest.mark.requirement("MC-ART-03")
async def test_a_type_that_is_not_allowed_is_refused_before_anything_is_read(objects: Objects) -> None:
    async def unread() -> AsyncIterator[bytes]:
        raise LookupError("it was read")
        yield b""

    with pytest.raises(MalformedEnvelope) as refused:
        await objects.keep("acme", "text/html", unread())
    assert (refused.value.details or {})["mime_types"] == ["application/json", "text/markdown", "text/plain"]


@pytest.mark.requirement("MC-ART-01")
async def test_nothing_is_kept_of_what_does_not_fit_its_type_or_its_hash(
    on_disk: Storage, clock: ManualClock, tmp_path: Path
) -> None:
    objects = objects_of(on_disk, clock, max_artifact_bytes=len(CONTENT))
    for content, mime in ((b"{", "application/json"), (b"\xff", "text/plain"), (CONTENT + b" ", "application/json")):
        with pytest.raises((InvalidArgument, MalformedEnvelope)):
            await keep(objects, content, mime=mime)
    with pytest.raises(NotAuthentic):
        await objects.keep("acme", "text/plain", pieces(b"a"), expected_sha256=HASH)
    assert files_in(tmp_path) == []
    await keep(objects)
    assert files_in(tmp_path) == [f"objects/{object_key('acme', HASH)}"]


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for each in content:
        yield each


async def test_a_quota_is_refused_in_words_and_leaves_no_file(
    on_disk: Storage, clock: ManualClock, tmp_path: Path
) -> None:
    objects = objects_of(on_disk, clock, artifact_bytes_per_tenant=5000)
    await keep(objects, b"a", mime="text/plain")
    with pytest.raises(ResourceExhausted) as refused:
        await keep(objects, b"b", mime="text/plain")
    details = refused.value.details or {}
    assert (details["reason"], details["setting"]) == ("artifact_quota", "gateway.artifact_bytes_per_tenant")
    await keep(objects, b"a", mime="text/plain")
    await keep(objects, b"b", "other", "text/plain")
    assert len(files_in(tmp_path)) == 2


async def test_a_wall_clock_that_is_ahead_makes_no_room_in_a_quota(
    on_disk: Storage, clock: ManualClock, tmp_path: Path
) -> None:
    objects = open_objects(on_disk, GatewayConfig(artifact_bytes_per_tenant=5000), clock).objects
    await keep(objects, b"a", mime="text/plain")
    clock.jump(7 * DAY)
    with pytest.raises(ResourceExhausted):
        await keep(objects, b"b", mime="text/plain")
    assert len(files_in(tmp_path)) == 1
    await let_pass(on_disk.port(PurgeClock), clock, DAY)
    await keep(objects, b"b", mime="text/plain")
    assert len(files_in(tmp_path)) == 1


@pytest.mark.parametrize("content", [b"[]", b"1", b'"x"', b"null"])
async def test_arguments_that_are_no_object_are_refused(objects: Objects, content: bytes) -> None:
    stored = await keep(objects, content)
    with pytest.raises(InvalidArgument, match="no JSON object"):
        await objects.arguments(ACME, stored.sha256)


async def test_arguments_that_would_take_far_more_memory_than_bytes_are_refused(
    storage: Storage, clock: ManualClock
) -> None:
    kept = open_objects(storage, GatewayConfig(), clock, shape=Shape(1000, 1000))
    stored = await keep(kept.objects, b'{"a":[%s]}' % (b"[]," * 100_000 + b"[]"))
    with pytest.raises(InvalidArgument, match="more than 1000"):
        await kept.objects.arguments(ACME, stored.sha256)


async def test_text_cannot_be_arguments(objects: Objects) -> None:
    stored = await keep(objects, b"{", mime="text/plain")
    with pytest.raises(InvalidArgument, match="not JSON"):
        await objects.arguments(ACME, stored.sha256)


@pytest.mark.requirement("MC-ART-01")
async def test_the_hash_is_checked_over_what_was_read(on_disk: Storage, clock: ManualClock, tmp_path: Path) -> None:
    objects = objects_of(on_disk, clock)
    await keep(objects)
    (tmp_path / "artifacts/objects" / object_key("acme", HASH)).write_bytes(CONTENT.replace(b"x", b"y"))
    with pytest.raises(StorageCorrupt):
        await objects.arguments(ACME, HASH)
    await keep(objects)
    assert await objects.arguments(ACME, HASH) == ARGS


# How artifacts end.


async def test_an_artifact_ends_a_day_after_it_was_last_sent(
    on_disk: Storage, clock: ManualClock, tmp_path: Path
) -> None:
    objects = objects_of(on_disk, clock)
    await keep(objects)
    clock.advance(DAY / 2)
    await keep(objects)
    clock.advance(DAY - 1)
    assert await objects.sweep() == {"deleted": 0, "nameless": 0}
    assert await objects.arguments(ACME, HASH) == ARGS
    clock.advance(1)
    with pytest.raises(NotFound):
        await objects.arguments(ACME, HASH)
    assert await objects.sweep() == {"deleted": 1, "nameless": 0}
    assert files_in(tmp_path) == []
    await keep(objects)
    assert await objects.arguments(ACME, HASH) == ARGS


async def test_a_pinned_artifact_is_there_for_a_request_that_is_carried_out_later(
    objects: Objects, clock: ManualClock
) -> None:
    await keep(objects)
    await objects.pin("acme", HASH, clock.now().timestamp() + 3 * DAY)
    clock.advance(2 * DAY)
    await objects.sweep()
    assert await objects.arguments(ACME, HASH) == ARGS
    with pytest.raises(NotFound):
        await objects.pin("other", HASH, 0.0)


@pytest.mark.slow
async def test_more_artifacts_than_one_step_takes_are_swept(objects: Objects, clock: ManualClock) -> None:
    for number in range(120):
        await keep(objects, b"%d" % number, mime="text/plain")
    clock.advance(DAY)
    assert await objects.sweep() == {"deleted": 120, "nameless": 0}


async def test_files_that_no_row_names_are_removed_after_a_day_and_drafts_after_an_hour(
    on_disk: Storage, clock: ManualClock, tmp_path: Path
) -> None:
    objects, store = objects_of(on_disk, clock), on_disk.port(ObjectStore)
    now = clock.now().timestamp()
    kept, nameless, young = object_key("acme", HASH), object_key("acme", "1" * 64), object_key("acme", "2" * 64)
    for key in (nameless, young):
        await (await store.write(pieces(b"a"))).commit(key)
    await store.write(pieces(b"an old draft"))
    (old,) = [name for name in files_in(tmp_path) if name.startswith("drafts")]
    await store.write(pieces(b"a draft"))
    (draft,) = [name for name in files_in(tmp_path) if name.startswith("drafts") and name != old]
    await keep(objects)
    await objects.pin("acme", HASH, now + 9 * DAY)
    ages = {f"objects/{kept}": 2 * DAY, f"objects/{nameless}": DAY + 1, f"objects/{young}": DAY - 1}
    for name, age in {**ages, old: 3601.0, draft: 3599.0}.items():
        os.utime(tmp_path / "artifacts" / name, (now - age, now - age))
    assert await objects.sweep() == {"deleted": 0, "nameless": 1}
    assert files_in(tmp_path) == sorted((f"objects/{kept}", f"objects/{young}", draft))
    assert await objects.arguments(ACME, HASH) == ARGS


# A process that ends in between.


class Died(BaseException):
    """As if the process had been killed."""


class DyingRecords:
    """The rows of a process that ends before, or just after, one of its steps."""

    def __init__(self, inner: Any, step: str, *, after: bool) -> None:
        self._inner, self._step, self._after = inner, step, after

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)
        if name != self._step:
            return method  # type: ignore[no-any-return]

        async def die(*arguments: Any) -> Any:
            if self._after:
                await method(*arguments)
            raise Died

        return die


def dying(storage: Storage, clock: ManualClock, step: str, *, after: bool) -> Objects:
    kept: KeptArtifacts = open_objects(storage, GatewayConfig(), clock)
    records: Any = DyingRecords(storage.port(ObjectRecords), step, after=after)
    expiry: Any = DyingRecords(storage.port(ObjectExpiry), step, after=after)
    assert kept.links is not None
    purge_clock = PromptPurgeClock(clock)
    return Objects(storage.port(ObjectStore), records, expiry, kept.links, GatewayConfig(), clock, purge_clock)


@pytest.mark.parametrize(("step", "after"), [("claim", False), ("claim", True), ("complete", False)])
async def test_a_crash_while_an_artifact_is_kept_leaves_nothing_to_be_found_and_is_swept(
    on_disk: Storage, clock: ManualClock, tmp_path: Path, step: str, after: bool
) -> None:
    objects = objects_of(on_disk, clock)
    with pytest.raises(Died):
        await keep(dying(on_disk, clock, step, after=after))
    with pytest.raises(NotFound):
        await objects.arguments(ACME, HASH)
    clock.advance(3600)
    await objects.sweep()
    assert [name for name in files_in(tmp_path) if name.startswith("objects")] == []
    await keep(objects)
    assert await objects.arguments(ACME, HASH) == ARGS


@pytest.mark.parametrize(("step", "after"), [("expire", True), ("forget", False)])
async def test_a_crash_while_an_artifact_is_deleted_is_made_good_a_minute_later(
    on_disk: Storage, clock: ManualClock, tmp_path: Path, step: str, after: bool
) -> None:
    objects = objects_of(on_disk, clock)
    await keep(objects)
    clock.advance(DAY)
    with pytest.raises(Died):
        await dying(on_disk, clock, step, after=after).sweep()
    with pytest.raises(NotFound):
        await objects.arguments(ACME, HASH)
    with pytest.raises(StorageBusy):
        await keep(objects)
    clock.advance(60)
    assert await objects.sweep() == {"deleted": 1, "nameless": 0}
    assert files_in(tmp_path) == []
    await keep(objects)
    assert await objects.arguments(ACME, HASH) == ARGS


async def test_arguments_pass_through_an_artifact_and_leave_one_that_was_there(
    on_disk: Storage, clock: ManualClock, tmp_path: Path
) -> None:
    objects = objects_of(on_disk, clock)
    assert await objects.pass_through("acme", CONTENT) == ARGS
    assert files_in(tmp_path) == []
    await keep(objects)
    assert await objects.pass_through("acme", CONTENT) == ARGS
    assert await objects.arguments(ACME, HASH) == ARGS


async def test_fifty_uploads_of_one_content_at_a_time_are_one_object(
    on_disk: Storage, clock: ManualClock, tmp_path: Path
) -> None:
    objects = objects_of(on_disk, clock)
    stored = await asyncio.gather(*(keep(objects) for _ in range(50)))
    assert {each.sha256 for each in stored} == {HASH}
    assert files_in(tmp_path) == [f"objects/{object_key('acme', HASH)}"]
    assert isinstance(on_disk.port(ObjectStore), FileObjects)


async def test_an_artifact_that_cannot_be_deleted_stops_no_other(
    storage: Storage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, store = objects_of(storage, clock), storage.port(ObjectStore)
    first, *_ = [await keep(objects, b"%d" % each, mime="text/plain") for each in range(3)]
    stuck, delete = object_key("acme", first.sha256), store.delete

    async def refuse_one(key: str) -> None:
        if key == stuck:
            raise StorageUnavailable("it is locked")
        await delete(key)

    clock.advance(2 * 86_400)
    with monkeypatch.context() as patching:
        patching.setattr(store, "delete", refuse_one)
        assert (await objects.sweep())["deleted"] == 2
    clock.advance(3_600)
    assert (await objects.sweep())["deleted"] == 1


async def test_a_tenant_that_reads_large_arguments_without_end_leaves_a_place_to_others(
    on_disk: Storage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, store = objects_of(on_disk, clock), on_disk.port(ObjectStore)
    for tenant in ("acme", "globex"):
        await keep(objects, tenant=tenant)
    gate, begun, read = asyncio.Event(), list[str](), store.read

    async def held(key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        begun.append(key)
        await gate.wait()
        async for piece in read(key, start, end):
            yield piece

    monkeypatch.setattr(store, "read", held)
    asked = [asyncio.create_task(objects.arguments(Holder("acme", str(each % 3)), HASH)) for each in range(20)]
    await until(lambda: len(begun) == 3)
    asked.append(asyncio.create_task(objects.arguments(Holder("globex"), HASH)))
    await until(lambda: len(begun) == 4)
    assert begun[3] == object_key("globex", HASH)
    gate.set()
    assert await asyncio.gather(*asked) == [ARGS] * 21
