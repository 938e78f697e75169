"""How much work something is, counted and never timed, so that it comes to the same on every machine."""

from __future__ import annotations

import asyncio
import selectors
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
_LOOP = (str(Path(asyncio.__file__).parent), selectors.__file__)
_UNCOUNTED = (*_LOOP, str(Path(__file__).parents[1]))


@dataclass
class Work:
    """What was done during a block of code; complete when the block has ended."""

    lines: int = 0
    """Lines of Python that this thread ran, each as often as it did. Those of the tests and of asyncio do not count."""
    allocated: int = 0
    """Bytes that were allocated, including those that were freed again before the block ended.

    What all threads allocate counts, but not while this one is within asyncio: it takes room to read into, and how much
    there is to read each time depends on the machine.
    """


@contextmanager
def counting() -> Iterator[Work]:
    """Count the work of a block. One that awaits includes all that its event loop does meanwhile."""
    work, held, is_counted = Work(), 0, True

    def note(frame: FrameType | None) -> None:
        """Count the bytes since the last time. From now on, what is allocated is allocated by `frame`.

        Between two lines, memory is at its highest when both what is made and what it is made of are there.
        """
        nonlocal held, is_counted
        _, highest = tracemalloc.get_traced_memory()
        work.allocated += highest - held if is_counted else 0
        is_counted = frame is None or not frame.f_code.co_filename.startswith(_LOOP)
        held, _ = tracemalloc.get_traced_memory()  # Again: what this function takes does not count.
        tracemalloc.reset_peak()

    def trace_line(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        if event == "line" and not frame.f_code.co_filename.startswith(_UNCOUNTED):
            work.lines += 1
        note(frame.f_back if event == "return" else frame)
        return trace_line

    def trace_call(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        note(frame)
        return trace_line

    tracer = sys.gettrace()  # Coverage may be measured.
    tracemalloc.start()
    sys.settrace(trace_call)
    try:
        yield work
    finally:
        sys.settrace(tracer)
        note(None)
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
