"""The ports to artifacts: payloads that are too large for a message, each kept under the hash of its content.

1. An object under a key is complete: it is written under another name, synced, and then renamed.
2. The row of an object is claimed before its content gets its key, and is found only when the content is there.
3. The row is marked as going before the content is deleted, and is deleted after it. From the mark on it is not found,
   and nobody can claim it, so an upload of the same content cannot be deleted with it.
4. A crash between two of these steps leaves a claim, or a row that is going. Both expire, and are then swept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

CLAIM_SECONDS: Final = 3600.0
"""How long an upload may take from its claim to its end."""
GOING_SECONDS: Final = 60.0
"""After that another process goes on with a deletion that was not finished."""
SMALLEST_CHARGE: Final = 4096
"""Bytes that an object counts at least, as a file takes them on a disk."""

_KEY = re.compile(r"[0-9a-f]{32}/[0-9a-f]{64}")


def object_key(tenant: str, sha256: str) -> str:
    """The key of a tenant's object. It holds a hash of the tenant's name: names are no file names, and stay private."""
    return f"{hashlib.sha256(tenant.encode()).hexdigest()[:32]}/{sha256}"


def check_key(key: str) -> None:
    """Raise `ValueError` for what is no key: a key is also the name of a file."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r:.100} is no key of an object")


class StoredObject(Struct, frozen=True, kw_only=True):
    """The row of an object."""

    tenant: str
    sha256: str
    """In hexadecimal, of the content."""
    mime: str
    """The type that it was last sent with."""
    size: int
    uploaded_at: float
    """In seconds since 1970, as is the next."""
    expires_at: float
    is_answer: bool = False
    """Whether it was made of a result that is too large for a message. Such count among the answers of a tenant."""

    @property
    def key(self) -> str:
        return object_key(self.tenant, self.sha256)

    @property
    def charge(self) -> int:
        """The bytes that it counts against the quota of its tenant."""
        return max(self.size, SMALLEST_CHARGE)


class ObjectDraft(Protocol):
    """Content that was written and has no key yet."""

    @property
    def sha256(self) -> str:
        """In hexadecimal."""
        ...

    @property
    def size(self) -> int: ...

    async def inspect(self, look: Callable[[memoryview], None]) -> None:
        """Call `look` with the whole content, off the event loop and without reading it into memory at once."""
        ...

    async def commit(self, key: str) -> None:
        """Make it the content of a key, in place of any other. It is durable then."""
        ...

    def discard(self) -> None:
        """Remove it, unless it was committed."""
        ...


class ObjectStore(Protocol):
    """Keeps contents by key. Every method raises `StorageError`s, and `ValueError` for what is no key."""

    async def write(self, pieces: AsyncIterator[bytes]) -> ObjectDraft:
        """Write pieces as they come. If they raise, nothing is left."""
        ...

    def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """The content from byte `start` up to, and without, `end`, in pieces."""
        ...

    async def size(self, key: str) -> int | None:
        """None if there is no such object."""
        ...

    async def delete(self, key: str) -> None:
        """Delete an object; it may be gone already."""
        ...

    async def sweep(self, written_before: float, drafts_before: float) -> list[str]:
        """Remove drafts that nobody has touched since, and return keys of objects that were written before a time.

        A store that cannot tell, or must not list what it has, returns none.
        """
        ...


class ObjectRecords(Protocol):
    """Knows which objects there are, for all processes of a server. Every method raises `StorageError`s."""

    async def claim(self, entry: StoredObject, limit: int, now: float) -> bool:
        """Make a row for content that is about to get its key; whether it is new. It is not found before `complete`.

        Raises `OverQuota` if its tenant had more than `limit` bytes of artifacts then, `QuotaExceeded` for an
        answer if it had more of answers, and `StorageBusy` while it is going.
        """
        ...

    async def complete(self, entry: StoredObject) -> bool:
        """The content is there. False if the claim has expired and was swept."""
        ...

    async def find(self, key: str, now: float) -> StoredObject | None:
        """None if there is no such object, or it has expired."""
        ...

    async def pin(self, key: str, until: float, now: float) -> bool:
        """Let an object expire no earlier than at a time. False if it is not found."""
        ...

    async def release(self, entry: StoredObject, now: float) -> bool:
        """Let an object expire now. False if somebody else has sent or pinned it since."""
        ...


class ObjectExpiry(Protocol):
    """Removes rows; see the rules at the top. Every method raises `StorageError`s."""

    async def condemn(self, keys: Sequence[str], now: float) -> int:
        """Let the objects expire that no row names; how many those are."""
        ...

    async def expire(self, now: float, limit: int) -> list[str]:
        """Mark what has expired as going; its keys, of which the content can be deleted."""
        ...

    async def forget(self, keys: Sequence[str]) -> None:
        """Delete the rows of what is going."""
        ...


class LinkKey(Struct, frozen=True):
    """The keys that sign links."""

    kid: str
    secret: bytes
    created_at: float
    """In seconds since 1970."""


class LinkKeys(Protocol):
    """Keeps the keys of links, for all processes of a server. Every method raises `StorageError`s."""

    async def all(self) -> list[LinkKey]:
        """The newest first."""
        ...

    async def renew(self, fresh: LinkKey, newest_from: float, oldest_from: float) -> list[LinkKey]:
        """Add a key unless there is one that was made after `newest_from`, and forget those from before `oldest_from`.

        Returns what `all` does. Of two processes at the same time, one adds its key.
        """
        ...
