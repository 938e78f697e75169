"""Quotas for tests that count how often they are asked, and in which order."""

from __future__ import annotations

from collections import Counter


class PlainQuotas:
    """Implements `Quotas` for one event loop, and answers at once."""

    def __init__(self) -> None:
        self._taken = Counter[tuple[str, int]]()

    async def take(self, bucket: str, window: int, wanted: int, limit: int) -> tuple[int, int]:
        granted = max(0, min(wanted, limit - self._taken[bucket, window]))
        self._taken[bucket, window] += granted
        return granted, self._taken[bucket, window]
