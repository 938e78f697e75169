"""The quota of answers that are kept for a tenant: whoever may only read fills no disk.

1. What a query leaves counts: its receipt, if it has an idempotency key; an answer that is too large for a message; and
   the answer and the reply of a request that was accepted; and a stream of queries with a `seq`. A query with neither a
   key nor a `seq` that is answered at once leaves nothing.
2. Nothing goes early to make room: when the quota is full, the next one is refused.
"""

from __future__ import annotations

from typing import Final

from dragoman.errors import QuotaExceeded

SMALLEST_CHARGE: Final = 1024
"""Bytes that each counts at least, as a row with its indexes takes them."""


def charge_of(*sizes: int) -> int:
    """What something counts that is kept for one answer."""
    return max(sum(sizes), SMALLEST_CHARGE)


def answers_full(limit: int, actual: int) -> QuotaExceeded:
    """The error for an answer that cannot be kept."""
    said = f"At most {limit} bytes of answers are kept for a tenant, each for as long as it was promised"
    return QuotaExceeded(said, "answer_quota", "knowledge.answer_bytes_per_tenant", limit, actual)
