"""How many requests a minute, for all processes of a server together.

Each process takes what it gives out from the store in small blocks, and fetches the next block before the last one is
used up. So only the first request of a minute waits for the store. Blocks begin small, grow while they are used up,
and become smaller again towards the limit: what other processes hold and do not use is little.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict

from msgspec import Struct

from dragoman.clock import Clock
from dragoman.errors import RateLimited
from dragoman.gateway.port import Quotas
from dragoman.gateway.settings import GatewayConfig

WINDOW_SECONDS = 60
MOST_BUCKETS = 10_000
_BLOCKS = 12
"""A limit has about so many blocks."""


class Remaining(Struct, frozen=True):
    """A limit, and how much of it is left, as clients are told."""

    limit: int
    remaining: int


class _Bucket(Struct, eq=False):
    window: int
    left: int = 0
    """Taken from the store, and not used."""
    taken: int = 0
    """By all processes, when that was last known."""
    block: int = 1
    """How many to take next, at most."""
    fetching: asyncio.Task[None] | None = None


class GatewayRates:
    """Counts requests by bucket. Lives on one event loop."""

    def __init__(self, quotas: Quotas, clock: Clock) -> None:
        self._quotas = quotas
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    async def take(self, *wanted: tuple[str, int] | tuple[str, int, str]) -> Remaining:
        """Count a request in each bucket, up to its limit, which may be a setting.

        Raises `RateLimited`, and counts it in none then.
        """
        counted: list[_Bucket] = []
        nearest = None
        for name, limit, *setting in wanted:
            try:
                bucket = await self._take(name, limit, *setting)
            except BaseException:
                for each in counted:
                    each.left += 1
                raise
            counted.append(bucket)
            remaining = limit - bucket.taken + bucket.left
            if nearest is None or remaining < nearest.remaining:
                nearest = Remaining(limit, remaining)
        assert nearest is not None
        return nearest

    async def _take(self, name: str, limit: int, setting: str | None = None) -> _Bucket:
        while True:
            now = self._clock.now().timestamp()
            bucket = self._bucket(name, int(now // WINDOW_SECONDS))
            if bucket.left > 0:
                bucket.left -= 1
                if bucket.left < _block(bucket, limit) // 2 and bucket.taken < limit:
                    self._fetch(name, bucket, limit)
                return bucket
            if bucket.taken >= limit and bucket.fetching is None:
                wait = (bucket.window + 1) * WINDOW_SECONDS - now
                raise RateLimited(limit, max(1, math.ceil(wait * 1000)), setting=setting)
            await asyncio.shield(self._fetch(name, bucket, limit))

    def _bucket(self, name: str, window: int) -> _Bucket:
        bucket = self._buckets.get(name)
        if bucket is None or bucket.window != window:
            bucket = self._buckets[name] = _Bucket(window)
            while len(self._buckets) > MOST_BUCKETS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        return bucket

    def _fetch(self, name: str, bucket: _Bucket, limit: int) -> asyncio.Task[None]:
        if bucket.fetching is None:
            bucket.fetching = asyncio.create_task(self._fetch_block(name, bucket, limit))
            bucket.fetching.add_done_callback(_look_at)
        return bucket.fetching

    async def _fetch_block(self, name: str, bucket: _Bucket, limit: int) -> None:
        try:
            granted, taken = await self._quotas.take(name, bucket.window, _block(bucket, limit), limit)
            bucket.left += granted
            bucket.taken = taken if granted else limit
            bucket.block *= 2
        finally:
            bucket.fetching = None


class RequestRates:
    """The rates of tenants and principals, which all addresses for documents share."""

    def __init__(self, rates: GatewayRates, settings: GatewayConfig) -> None:
        self._rates = rates
        self._settings = settings

    async def take(self, principal: str | None = None, tenant: str | None = None) -> Remaining:
        """Count a request of a principal, of a tenant, or of both. Raises `RateLimited`, and counts it in none then."""
        wanted = []
        if tenant is not None:  # First: whoever can choose its name freely is still of one tenant.
            limit = self._settings.requests_per_minute_per_tenant
            wanted.append((f"tenant {tenant}", limit, "gateway.requests_per_minute_per_tenant"))
        if principal is not None:
            limit = self._settings.requests_per_minute_per_principal
            wanted.append((f"principal {principal}", limit, "gateway.requests_per_minute_per_principal"))
        return await self._rates.take(*wanted)


def retry_after(error: RateLimited) -> tuple[bytes, bytes]:
    """The header of a refusal that says when to come back."""
    return b"retry-after", b"%d" % -(-int((error.details or {}).get("retryAfterMs", 1000)) // 1000)


def _look_at(task: asyncio.Task[None]) -> None:
    """Take note of a failure, so that Python does not report it: a request that needs the block gets the error."""
    if not task.cancelled():
        task.exception()


def _block(bucket: _Bucket, limit: int) -> int:
    return max(1, min(bucket.block, limit // _BLOCKS, (limit - bucket.taken) // 4))
