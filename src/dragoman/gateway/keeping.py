"""Artifacts: content that was sent here is kept for a day, and read again by its key, never by an address."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from dragoman.calls.places import AwaitedPlaces, Holder
from dragoman.clock import Clock
from dragoman.errors import (
    InvalidArgument,
    NotAuthentic,
    NotFound,
    OverQuota,
    QuotaExceeded,
    StorageBusy,
    StorageCorrupt,
    StorageError,
    StorageUnavailable,
)
from dragoman.findings import Finding
from dragoman.gateway.contents import JSON, check_allowed, check_whole, checked, unfit
from dragoman.gateway.envelope import malformed
from dragoman.gateway.links import LINK_SECONDS, ArtifactLink, Links, SignedLinks
from dragoman.gateway.objects import (
    CLAIM_SECONDS,
    LinkKeys,
    ObjectDraft,
    ObjectExpiry,
    ObjectRecords,
    ObjectStore,
    StoredObject,
)
from dragoman.gateway.objects import object_key as key_of
from dragoman.gateway.settings import GatewayConfig
from dragoman.protocol.shape import Shape
from dragoman.storage.port import PurgeClock, Storage

KEPT_SECONDS: Final = 86_400.0
"""After the last upload. A pinned object is kept for longer."""
_SHAPE: Final = Shape(100_000, 524_288)
_SWEPT_AT_ONCE: Final = 16
_LONG_AGO: Final = 0.0
"""What has expired then can go at once, whatever the time is."""
_MOST_DEPTH: Final = 100
_READ_AT_ONCE: Final = 4
"""Arguments that are read and decoded at a time: each can have 64 MiB. The tenants share the places."""


class StoredArtifact(Struct, frozen=True):
    """An object that can be linked to."""

    uri: str
    sha256: str
    expires_at: int
    """When the link expires, in seconds since 1970; the object itself is kept for longer."""

    @property
    def data(self) -> dict[str, Any]:
        """The facts for clients."""
        moment = datetime.fromtimestamp(self.expires_at, UTC).isoformat().replace("+00:00", "Z")
        return {"artifact_uri": self.uri, "artifact_hash": self.sha256, "expires_at": moment}


class Objects:
    """Keeps the artifacts of all tenants. Every method raises `StorageError`s too."""

    def __init__(
        self,
        store: ObjectStore,
        records: ObjectRecords,
        expiry: ObjectExpiry,
        links: Links,
        settings: GatewayConfig,
        clock: Clock,
        purge_clock: PurgeClock,
        shape: Shape = _SHAPE,
    ) -> None:
        """Arguments that are read consist of no more than `shape` allows."""
        self._store = store
        self._records = records
        self._expiry = expiry
        self._links = links
        self._settings = settings
        self._clock = clock
        self._purge_clock = purge_clock
        self._shape = shape
        self._reading = AwaitedPlaces(_READ_AT_ONCE)

    async def keep(
        self,
        tenant: str,
        mime: str,
        pieces: AsyncIterator[bytes],
        *,
        expected_sha256: str | None = None,
        base: str = "",
    ) -> StoredArtifact:
        """Keep content while it comes, and link to it. `base` is how clients reach the server, if that is known.

        Raises `MalformedEnvelope` for a type that is not allowed and for too many bytes, `InvalidArgument` for content
        that does not fit its type, `NotAuthentic` for another hash than expected, and `QuotaExceeded`.
        """
        entry, _ = await self._keep(tenant, mime, pieces, expected_sha256)
        return await self.link_to(entry, base)

    async def keep_answer(self, tenant: str, content: bytes, base: str, most_kept: int) -> StoredArtifact:
        """Keep a result that is too large for a message, for as long as the link to it is good.

        Raises `QuotaExceeded` if the answers that are kept for the tenant would weigh more than `most_kept`.
        """
        entry, _ = await self._keep(tenant, JSON, _piece(content), None, most_kept)
        return await self.link_to(entry, base)

    async def pass_through(self, tenant: str, content: bytes) -> dict[str, Any]:
        """Arguments that are kept as an artifact, read again as from any other, and removed."""
        entry, is_new = await self._keep(tenant, JSON, _piece(content), None)
        try:
            return await self.arguments(Holder(tenant), entry.sha256)
        finally:
            if is_new and await self._records.release(entry, _LONG_AGO):
                await self._delete_expired(_LONG_AGO)

    async def link_to(self, entry: StoredObject, base: str = "") -> StoredArtifact:
        """A new link to an object."""
        expires_at = int(self._now()) + LINK_SECONDS
        link = ArtifactLink(entry.tenant, entry.sha256, entry.mime, expires_at)
        uri = await self._links.make(link, base or self._settings.public_url or "")
        return StoredArtifact(uri, entry.sha256, expires_at)

    async def resolve(self, tenant: str, artifact_uri: str, artifact_hash: str) -> str:
        """The hash of the object that a link of ours is for, and that the tenant still has. No address is fetched.

        Raises `MalformedEnvelope`, `Unauthorized`, `Expired` and `NotFound`.
        """
        sha256 = await self._links.read(artifact_uri, tenant)
        if not hmac.compare_digest(sha256.encode(), artifact_hash.lower().encode()):
            raise malformed("payload.artifact_hash", "is not the hash in artifact_uri", {"reason": "artifact_hash"})
        await self.find(tenant, sha256)
        return sha256

    async def find(self, tenant: str, sha256: str) -> StoredObject:
        """The row of an object. Raises `NotFound`."""
        found = await self._records.find(key_of(tenant, sha256), self._now())
        if found is None:
            raise NotFound("There is no such artifact, or it has expired", {"reason": "unknown_artifact"})
        return found

    async def check_content(self, entry: StoredObject) -> None:
        """Raise `StorageUnavailable` for an object whose content somebody else has removed or cut."""
        if await self._store.size(entry.key) != entry.size:
            raise StorageUnavailable("the content of an artifact is not what it was")

    async def arguments(self, holder: Holder, sha256: str) -> dict[str, Any]:
        """The arguments that an object of the holder's tenant holds, read in the holder's share.

        Raises `NotFound`, and `InvalidArgument` if it holds none.
        """
        await self.find(holder.tenant, sha256)
        release = await self._reading.acquire(holder)
        try:
            pieces = [piece async for piece in self._store.read(key_of(holder.tenant, sha256))]
            return await asyncio.to_thread(_arguments_in, pieces, sha256, self._shape)
        finally:
            release()

    def read(self, entry: StoredObject, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """The content of an object from byte `start` up to, and without, `end`."""
        return self._store.read(entry.key, start, end)

    async def pin(self, tenant: str, sha256: str, until: float) -> None:
        """Keep an object until a time at least, for a request that is carried out later. Raises `NotFound`."""
        if not await self._records.pin(key_of(tenant, sha256), until, self._now()):
            raise NotFound("There is no such artifact, or it has expired", {"reason": "unknown_artifact"})

    async def sweep(self) -> dict[str, int]:
        """Delete what has expired, and what was left behind. For one process at a time."""
        now = await self._purge_clock.now()
        deleted = await self._delete_expired(now)
        old = await self._store.sweep(now - KEPT_SECONDS, now - CLAIM_SECONDS)
        nameless = await self._expiry.condemn(old, now) if old else 0
        if nameless:
            await self._delete_expired(now)
        return {"deleted": deleted, "nameless": nameless}

    async def _delete_expired(self, now: float) -> int:
        deleted = 0
        while keys := await self._expiry.expire(now, _SWEPT_AT_ONCE):
            gone = [key for key in keys if await self._is_deleted(key)]
            await self._expiry.forget(gone)
            deleted += len(gone)
        return deleted

    async def _is_deleted(self, key: str) -> bool:
        """Delete an object; one that cannot be deleted is tried again by a later sweep, and does not stop this one."""
        try:
            await self._store.delete(key)
        except StorageError:
            return False
        return True

    async def _keep(
        self,
        tenant: str,
        mime: str,
        pieces: AsyncIterator[bytes],
        expected_sha256: str | None,
        most_kept: int | None = None,
    ) -> tuple[StoredObject, bool]:
        check_allowed(mime, self._settings.mime_types)
        draft = await self._store.write(checked(pieces, mime, self._settings.max_artifact_bytes))
        try:
            if expected_sha256 is not None and not hmac.compare_digest(
                draft.sha256.encode(), expected_sha256.lower().encode()
            ):
                raise NotAuthentic("The token was signed for another body", {"reason": "unauthenticated"})
            await draft.inspect(partial(check_whole, mime))
            return await self._put_away(tenant, mime, draft, most_kept)
        finally:
            draft.discard()

    async def _put_away(
        self, tenant: str, mime: str, draft: ObjectDraft, most_kept: int | None
    ) -> tuple[StoredObject, bool]:
        """Give a draft its key, in the order that `objects.py` has; and whether there was no such object."""
        now = self._now()
        entry = StoredObject(
            tenant=tenant,
            sha256=draft.sha256,
            mime=mime,
            size=draft.size,
            uploaded_at=now,
            expires_at=now + (KEPT_SECONDS if most_kept is None else LINK_SECONDS),
            is_answer=most_kept is not None,
        )
        limit = self._settings.artifact_bytes_per_tenant if most_kept is None else most_kept
        try:
            is_new = await self._claim(entry, limit, now)
        except OverQuota as error:
            raise _no_room(error) from None
        await draft.commit(entry.key)
        if not await self._records.complete(entry):
            raise StorageBusy("an artifact was swept while it was written")
        return entry, is_new

    async def _claim(self, entry: StoredObject, limit: int, now: float) -> bool:
        """Claim an object's row; what has expired makes room first."""
        try:
            return await self._records.claim(entry, limit, now)
        except (OverQuota, QuotaExceeded):
            if not await self._delete_expired(await self._purge_clock.now()):
                raise
        return await self._records.claim(entry, limit, now)

    def _now(self) -> float:
        return self._clock.now().timestamp()


class ArtifactBucket(NamedTuple):
    """A bucket that keeps artifacts instead of the storage, and the links to them."""

    store: ObjectStore
    links: Links
    examine: Callable[[], Awaitable[Sequence[Finding]]] | None = None
    """Finds out whether the bucket has the rules that artifacts need."""


class KeptArtifacts(NamedTuple):
    """The artifacts of a server."""

    objects: Objects
    links: SignedLinks | None
    """None if the gateway does not serve them itself."""


def open_objects(
    storage: Storage, settings: GatewayConfig, clock: Clock, bucket: ArtifactBucket | None = None, shape: Shape = _SHAPE
) -> KeptArtifacts:
    """The artifacts in a storage, or in a bucket with their rows in the storage."""
    purge_clock = storage.port(PurgeClock)
    keys = storage.port(LinkKeys)
    signed = SignedLinks(keys, clock, purge_clock, settings.public_url) if bucket is None else None
    store, links = (storage.port(ObjectStore), signed) if bucket is None else bucket[:2]
    assert links is not None
    records, expiry = storage.port(ObjectRecords), storage.port(ObjectExpiry)
    return KeptArtifacts(Objects(store, records, expiry, links, settings, clock, purge_clock, shape), signed)


async def _piece(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _arguments_in(pieces: list[bytes], sha256: str, shape: Shape) -> dict[str, Any]:
    content = b"".join(pieces)
    if not hmac.compare_digest(hashlib.sha256(content).hexdigest(), sha256):
        raise StorageCorrupt("an artifact does not have its hash any longer")
    excess = shape.excess(content)
    if excess is not None:
        raise unfit(f"The artifact has {excess}")
    try:
        arguments = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise unfit("The artifact is not JSON") from None
    if not isinstance(arguments, dict):
        raise InvalidArgument("The artifact is no JSON object", {"reason": "artifact_content"})
    if not _is_shallow(arguments):
        raise unfit(f"The artifact is nested more than {_MOST_DEPTH} deep")
    return arguments


def _is_shallow(value: Any) -> bool:
    """Whether it can be encoded again on any stack."""
    layer = [value]
    for _ in range(_MOST_DEPTH):
        layer = [
            child
            for each in layer
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, dict | list)
        ]
        if not layer:
            return True
    return False


def _no_room(error: OverQuota) -> QuotaExceeded:
    said = f"At most {error.limit} bytes of artifacts are kept for a tenant; each ends a day after it was sent"
    return QuotaExceeded(said, "artifact_quota", "gateway.artifact_bytes_per_tenant", error.limit, error.actual)
