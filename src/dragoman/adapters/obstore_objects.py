"""Artifacts in a bucket of S3 or Google Cloud Storage, with the cloud's own signed links.

1. An upload is written to a local file and checked first. The bucket gets it whole, or not at all.
2. A link is only compared with the one that would be made for the same object: its content is read by key.
3. Nothing lists a bucket. A lifecycle rule of the bucket is what removes objects that no row names.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import parse_qsl, urlsplit

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import GCSStore, S3Store

from dragoman.adapters.file_objects import PIECE, FileDraft, FileObjects
from dragoman.clock import Clock
from dragoman.errors import Expired, StorageUnavailable
from dragoman.gateway.envelope import LONGEST_URI, malformed
from dragoman.gateway.links import LINK_SECONDS, ArtifactLink, not_ours
from dragoman.gateway.objects import check_key, object_key
from dragoman.gateway.settings import BUCKET_URL

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore as Bucket
    from obstore.store import RetryConfig

_CLOCKS_DIFFER: Final = 60.0
_ATTRIBUTES: Final = {"Content-Type": "application/octet-stream", "Content-Disposition": "attachment"}
_HASH = re.compile(r"[0-9a-f]{64}")


def open_bucket(url: str, *, is_anonymous: bool = False, retries: RetryConfig | None = None) -> S3Store | GCSStore:
    """The bucket that `gateway.artifact_store` names; its credentials are in the environment, unless it has none."""
    found = BUCKET_URL.fullmatch(url)
    assert found is not None, "the settings were checked"
    scheme, name, prefix = found.groups()
    within = prefix.strip("/") or None
    kind = S3Store if scheme == "s3" else GCSStore
    return kind(name, prefix=within, skip_signature=is_anonymous, retry_config=retries)


def look_at_bucket(url: str) -> Iterator[tuple[Literal["ok", "warning", "problem"], str, str | None]]:
    """Verdicts, findings and advice about a bucket: whether it can be used, and who can list it. Never raises."""
    try:
        own, anybody = (open_bucket(url, is_anonymous=each, retries={"max_retries": 0}) for each in (False, True))
        obstore.head(own, object_key("", "0" * 64))
    except (NotFoundError, FileNotFoundError):
        yield "ok", f"{url} can be reached", None
    except Exception as error:  # Whatever it is, the bucket cannot be used with these credentials now.
        yield (
            "problem",
            f"{url} cannot be used: {type(error).__name__}",
            "Check the name, the region and the credentials.",
        )
        return
    if _can_list(anybody):
        yield "problem", f"anybody can list {url}", "Forbid public access to the bucket."
    elif _can_list(own):
        yield (
            "warning",
            f"the server's own credentials can list {url}",
            "They need to get, put and delete objects alone.",
        )
    else:
        yield "ok", f"{url} cannot be listed", None


def _can_list(bucket: S3Store | GCSStore) -> bool:
    try:
        next(iter(obstore.list(bucket, chunk_size=1)), None)
    except (BaseError, OSError):
        return False
    return True


class BucketDraft(FileDraft):
    """Implements `ObjectDraft`: a file here, until it is committed."""

    def __init__(self, folder: Path, bucket: Bucket) -> None:
        super().__init__(folder)
        self._bucket = bucket

    async def commit(self, key: str) -> None:
        check_key(key)
        with _as_storage_errors():
            await obstore.put_async(self._bucket, key, self.path, attributes=_ATTRIBUTES)


class ObstoreObjects:
    """Implements `ObjectStore`. Unfinished uploads are in `folder`."""

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self._bucket = bucket
        self._folder = folder
        self._files = FileObjects(folder)

    async def write(self, pieces: AsyncIterator[bytes]) -> BucketDraft:
        return await self._files.write_into(BucketDraft(self._folder, self._bucket), pieces)

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        check_key(key)
        if end is not None and end <= start:
            return
        options: GetOptions = {}
        if start or end is not None:
            options["range"] = {"offset": start} if end is None else (start, end)
        with _as_storage_errors():
            found = await obstore.get_async(self._bucket, key, options=options)
            async for piece in found.stream(min_chunk_size=PIECE):
                yield bytes(piece)

    async def size(self, key: str) -> int | None:
        check_key(key)
        try:
            with _as_storage_errors():
                return int((await obstore.head_async(self._bucket, key))["size"])
        except _Gone:
            return None

    async def delete(self, key: str) -> None:
        check_key(key)
        try:
            with _as_storage_errors():
                await obstore.delete_async(self._bucket, key)
        except _Gone:
            pass

    async def sweep(self, written_before: float, drafts_before: float) -> list[str]:
        await self._files.sweep(written_before, drafts_before)
        return []


class ObstoreLinks:
    """Implements `Links`, with links that the cloud itself serves.

    A signature of the cloud's cannot be checked here. It need not be: the link has to name the tenant's own object, and
    its content is read by key.
    """

    def __init__(self, bucket: S3Store | GCSStore, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock

    async def make(self, link: ArtifactLink, base: str) -> str:
        return await self._sign(object_key(link.tenant, link.sha256))

    async def read(self, uri: str, tenant: str) -> str:
        try:
            parts = urlsplit(uri)
            query = parse_qsl(parts.query, strict_parsing=True, keep_blank_values=True)
        except ValueError:
            raise malformed("payload.artifact_uri", "is no link to an artifact") from None
        sha256 = parts.path.rpartition("/")[2]
        if len(uri) > LONGEST_URI or parts.fragment or not _HASH.fullmatch(sha256):
            raise malformed("payload.artifact_uri", "is no link to an artifact")
        own = await self._sign(object_key(tenant, sha256))
        if uri.partition("?")[0] != own.partition("?")[0]:
            raise not_ours()
        fields = dict(query)
        if len(fields) != len(query) or fields.keys() != dict(parse_qsl(urlsplit(own).query)).keys():
            raise not_ours()
        self._check_time(fields)
        return sha256

    async def _sign(self, key: str) -> str:
        with _as_storage_errors():
            return await obstore.sign_async(self._bucket, "GET", key, timedelta(seconds=LINK_SECONDS))

    def _check_time(self, fields: dict[str, str]) -> None:
        named = {name.rpartition("-")[2].lower(): value for name, value in fields.items()}
        try:
            began = datetime.strptime(named["date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
            lives = int(named["expires"])
        except ValueError:
            raise not_ours() from None
        now = self._clock.now().timestamp()
        if not 0 < lives <= LINK_SECONDS or began > now + _CLOCKS_DIFFER:
            raise not_ours()
        if now >= began + lives:
            raise Expired("The link to the artifact has expired", {"reason": "artifact_link_expired"})


class _Gone(StorageUnavailable):
    pass


@contextmanager
def _as_storage_errors() -> Iterator[None]:
    """Raises `StorageUnavailable` for whatever the cloud says, and `_Gone` for an object that there is not."""
    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise _Gone("there is no such object in the bucket") from error
    except (BaseError, OSError) as error:
        raise StorageUnavailable(f"the bucket cannot be used: {type(error).__name__}") from error
