"""When Python looks for garbage in a process that serves."""

from __future__ import annotations

import gc

UNCOLLECTED = 10_000
"""How many more objects there may be before some are looked through for garbage. 64 calls at once have more than
Python's 700, and leave none."""
UNCOLLECTED_WITH_AGENTS = 50_000
"""Hundreds of messages wait for a commit at once, each with some thirty objects."""


def collect_less(*, has_agents: bool) -> None:
    """Look only through what is new from now on, and less often."""
    gc.freeze()  # What is loaded now stays; there is no point in looking through it again and again.
    most = UNCOLLECTED_WITH_AGENTS if has_agents else UNCOLLECTED
    if 0 < gc.get_threshold()[0] < most:  # What was imported may have chosen otherwise.
        gc.set_threshold(most)
