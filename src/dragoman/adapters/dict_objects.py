"""Artifacts, their rows and the keys of links to them, in the memory of a process that keeps nothing."""

from __future__ import annotations

import asyncio
import hashlib
import heapq
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.errors import OverQuota, StorageBusy, StorageUnavailable
from dragoman.gateway.objects import CLAIM_SECONDS, GOING_SECONDS, LinkKey, StoredObject, check_key

_CLAIMED, _COMPLETE, _GOING = range(3)


class DictDraft:
    """Implements `ObjectDraft`."""

    def __init__(self, contents: dict[str, bytes], content: bytes) -> None:
        self._contents = contents
        self._content = content
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.size = len(content)

    async def inspect(self, look: Callable[[memoryview], None]) -> None:
        await asyncio.to_thread(look, memoryview(self._content))

    async def commit(self, key: str) -> None:
        check_key(key)
        self._contents[key] = self._content

    def discard(self) -> None:
        self._content = b""


class DictObjects:
    """Implements `ObjectStore`. The quotas of tenants bound what it holds."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    async def write(self, pieces: AsyncIterator[bytes]) -> DictDraft:
        written = bytearray()
        async for piece in pieces:
            written += piece
        return DictDraft(self._contents, bytes(written))

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        check_key(key)
        if key not in self._contents:
            raise StorageUnavailable("the artifact is gone")
        if piece := self._contents[key][start:end]:
            yield piece

    async def size(self, key: str) -> int | None:
        check_key(key)
        return len(self._contents[key]) if key in self._contents else None

    async def delete(self, key: str) -> None:
        check_key(key)
        self._contents.pop(key, None)

    async def sweep(self, written_before: float, drafts_before: float) -> list[str]:
        return []  # Nothing survives what could have left it behind.


class _Row(Struct):
    entry: StoredObject
    state: int
    expires_at: float


class DictObjectRecords:
    """Implements `ObjectRecords` and `ObjectExpiry`."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._totals: Counter[str] = Counter()

    async def claim(self, entry: StoredObject, limit: int, now: float) -> bool:
        row, until = self._rows.get(entry.key), now + CLAIM_SECONDS
        if row is not None:
            if row.state == _GOING:
                raise StorageBusy("the artifact is being deleted")
            row.expires_at = max(row.expires_at, until)
            return False
        total = self._totals[entry.tenant] + entry.charge
        if total > limit:
            raise OverQuota(limit, total)
        self._totals[entry.tenant] = total
        self._rows[entry.key] = _Row(entry, _CLAIMED, until)
        return True

    async def complete(self, entry: StoredObject) -> bool:
        row = self._rows.get(entry.key)
        if row is None or row.state == _GOING:
            return False
        row.expires_at = max(row.expires_at, entry.expires_at) if row.state == _COMPLETE else entry.expires_at
        row.state, row.entry = _COMPLETE, entry
        return True

    async def find(self, key: str, now: float) -> StoredObject | None:
        row = self._found(key, now)
        return None if row is None else replace(row.entry, expires_at=row.expires_at)

    async def pin(self, key: str, until: float, now: float) -> bool:
        row = self._found(key, now)
        if row is not None:
            row.expires_at = max(row.expires_at, until)
        return row is not None

    async def release(self, entry: StoredObject, now: float) -> bool:
        row = self._rows.get(entry.key)
        if row is None or row.state != _COMPLETE:
            return False
        if (row.entry.uploaded_at, row.expires_at) != (entry.uploaded_at, entry.expires_at):
            return False
        row.expires_at = now
        return True

    async def condemn(self, keys: Sequence[str], now: float) -> int:
        nameless = [key for key in dict.fromkeys(keys) if key not in self._rows]
        nobody = StoredObject(tenant="", sha256="", mime="", size=0, uploaded_at=now, expires_at=now)
        self._rows |= {key: _Row(nobody, _GOING, now) for key in nameless}
        return len(nameless)

    async def expire(self, now: float, limit: int) -> list[str]:
        expired = ((row.expires_at, key) for key, row in self._rows.items() if row.expires_at <= now)
        keys = [key for _, key in heapq.nsmallest(limit, expired)]
        for key in keys:
            self._rows[key].state, self._rows[key].expires_at = _GOING, now + GOING_SECONDS
        return keys

    async def forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            row = self._rows.get(key)
            if row is not None and row.state == _GOING:
                del self._rows[key]
                if row.entry.tenant:  # Nobody's were not counted.
                    self._totals[row.entry.tenant] -= row.entry.charge
                    self._totals += Counter()  # Those with nothing are forgotten.

    def _found(self, key: str, now: float) -> _Row | None:
        row = self._rows.get(key)
        return row if row is not None and row.state == _COMPLETE and row.expires_at > now else None


class DictLinkKeys:
    """Implements `LinkKeys`."""

    def __init__(self) -> None:
        self._keys: list[LinkKey] = []

    async def all(self) -> list[LinkKey]:
        return [*self._keys]

    async def renew(self, fresh: LinkKey, newest_from: float, oldest_from: float) -> list[LinkKey]:
        kept = [key for key in self._keys if key.created_at >= oldest_from]
        if not kept or kept[0].created_at < newest_from:
            kept.append(fresh)
        self._keys = sorted(kept, key=lambda key: (-key.created_at, key.kid))
        return [*self._keys]
