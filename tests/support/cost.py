"""How much work something is, counted and never timed, so that it comes to the same on every machine."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

MEGABYTE = 1 << 20
_UNCOUNTED = (str(Path(__file__).parents[1]), str(Path(asyncio.__file__).parent))


@dataclass
class Work:
    """What was done during a block of code; complete when the block has ended."""

    lines: int = 0
    """Lines of Python that this thread ran, each as often as it did. Those of the tests and of asyncio do not count."""
    allocated: int = 0
    """Bytes that all threads allocated, including those that they freed again before the block ended."""


@contextmanager
def counting() -> Iterator[Work]:
    """Count the work of a block. One that awaits includes all that its event loop does meanwhile."""
    work, held = Work(), 0

    def note() -> None:
        """Between two lines, memory is at its highest when both what is made and what it is made of are there."""
        nonlocal held
        now, highest = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        work.allocated += highest - held
        held = now

    def trace_line(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        if event == "line":
            work.lines += 1
            note()
        return trace_line

    def trace_call(frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        note()
        return None if frame.f_code.co_filename.startswith(_UNCOUNTED) else trace_line

    tracer = sys.gettrace()  # Coverage may be measured.
    tracemalloc.start()
    sys.settrace(trace_call)
    try:
        yield work
    finally:
        sys.settrace(tracer)
        note()
        tracemalloc.stop()


def work_of(function: Callable[[], object]) -> Work:
    """The work of a function."""
    with counting() as work:
        function()
    return work


@dataclass
class Growth:
    """What a block of code has added to the memory of a process; complete when the block has ended."""

    memory: int = 0
    """Bytes."""


@contextmanager
def growth_of(pid: int) -> Iterator[Growth]:
    """Measure the memory of process `pid` for as long as the block takes."""
    growth, process = Growth(), psutil.Process(pid)
    before = process.memory_info().rss
    try:
        yield growth
    finally:
        growth.memory = process.memory_info().rss - before
