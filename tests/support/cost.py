"""The cost of an attack: a server's CPU time beside the bare parser's for the same bytes, and the memory it keeps.

Both sides are measured in CPU seconds on the same machine, so a slow or busy one does not change the verdict.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

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


def cheapest(pid: int, block: Callable[[], object], most: float) -> float:
    """CPU seconds of process `pid` for a block of code.

    A busy machine can double them, so what takes more than `most` is measured again; the cheapest of five counts.
    """
    least = float("inf")
    for _ in range(5):
        with cost_for(pid) as cost:
            block()
        least = min(least, cost.cpu)
        if least <= most:
            break
    return least


def _cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


_DECODE = """
import sys, time, msgspec
data = sys.stdin.buffer.read()
began, tries = time.process_time(), 0
while tries < 3 and time.process_time() - began < 0.5:
    msgspec.json.decode(data)
    tries += 1
print((time.process_time() - began) / tries)
"""


@cache
def bare_decode(data: bytes) -> float:
    """CPU seconds that msgspec takes to decode `data`, the garbage collector's included: the mean of a few tries.

    In a new process, since the collector's part depends on what a process has done before.
    """
    done = subprocess.run([sys.executable, "-c", _DECODE], input=data, capture_output=True, check=True)
    return float(done.stdout)


def cpu_of(function: Callable[[], object]) -> float:
    """CPU seconds that a function takes in this process."""
    began = time.process_time()
    function()
    return time.process_time() - began
