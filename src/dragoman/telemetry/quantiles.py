"""Quantiles of what was counted in buckets."""

from __future__ import annotations

import math
from collections.abc import Iterable


def quantile(share: float, buckets: Iterable[tuple[float, float]]) -> float | None:
    """The value that a share of all values does not exceed; None if there are none.

    `buckets` are upper bounds, in any order, and how many values do not exceed each. Values are taken to be spread
    evenly within a bucket, and to be at the lower bound of one that has no upper bound, as Prometheus does it.
    """
    counts = sorted(buckets)
    total = counts[-1][1] if counts else 0.0
    if total <= 0:
        return None
    wanted, lower, below = share * total, 0.0, 0.0
    for upper, count in counts:
        if count >= wanted:
            if math.isinf(upper):
                break
            part = (wanted - below) / (count - below) if count > below else 1.0
            return lower + (upper - lower) * part
        lower, below = upper, count
    return lower
