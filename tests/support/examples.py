"""How many examples a property looks at."""

from __future__ import annotations

from hypothesis import settings


def examples(times: float) -> int:
    """So many times as many as the others in this run: 30 by default, 1,000 in `make nightly`."""
    return max(1, round(times * settings().max_examples))
