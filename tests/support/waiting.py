"""How tests wait: for a condition, and for as long as a slow machine needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds. Nothing takes this long but a failure: a wait that must not happen is made longer than this."""


async def until(is_so: Callable[[], object]) -> None:
    """Return when the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110 - conditions here have no event
            await asyncio.sleep(0.002)


def wait_until(is_so: Callable[[], object]) -> None:
    """The same on a thread."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.002)
