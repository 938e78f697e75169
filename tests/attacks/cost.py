"""The cost of an attack: a server's CPU time beside the bare parser's for the same bytes, and the memory it keeps.

Both sides are measured in CPU seconds on the same machine, so a slow or busy one does not change the verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import msgspec
import psutil

MEGABYTE = 1 << 20
LEAST_CPU = 0.05
"""CPU seconds that are never held against a server: the system counts in hundredths, and housekeeping costs some."""


@dataclass
class Cost:
    """What a block of code cost a server process; complete when the block has ended."""

    cpu: float = 0.0
    """Seconds, of all its threads."""
    memory: int = 0
    """Bytes that it has grown by."""


@contextmanager
def cost_for(pid: int) -> Iterator[Cost]:
    """Measure process `pid` for as long as the block takes."""
    cost, process = Cost(), psutil.Process(pid)
    before, held = _cpu_of(process), process.memory_info().rss
    try:
        yield cost
    finally:
        cost.cpu, cost.memory = _cpu_of(process) - before, process.memory_info().rss - held


def _cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@cache
def bare_decode(data: bytes) -> float:
    """CPU seconds that msgspec takes to decode `data`, the garbage collector's included: the mean of a few tries."""
    took, tries = 0.0, 0
    while tries < 3 and took < 0.5:
        took += cpu_of(lambda: msgspec.json.decode(data))
        tries += 1
    return took / tries


def cpu_of(function: Callable[[], object]) -> float:
    """CPU seconds that a function takes in this process."""
    began = time.process_time()
    function()
    return time.process_time() - began
