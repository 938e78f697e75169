"""The event loop of a server that has the process to itself."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from dragoman.calls.interrupts import is_interrupt
from dragoman.calls.threads import DaemonExecutor
from dragoman.forks import in_forked_children

T = TypeVar("T")

SWITCH_SECONDS = 0.0002
"""How long a thread that computes keeps others waiting. Python's 5 ms add up: whoever waits for the disk, as for each
statement of a transaction, waits for the thread again afterwards, and meanwhile nobody else can write."""
_LARGEST_BUFFER = 2 * 1024 * 1024


def run_to_end(loop: asyncio.AbstractEventLoop, serving: Coroutine[Any, Any, T]) -> T:
    """What `serving` returns, whatever happens besides.

    `SystemExit` and `KeyboardInterrupt` in a task that a tool has started leave the loop. That ends the task and what
    waits for it, but a tool cannot end the server: the loop goes on. It ends in a child that a tool has forked.
    """
    task = loop.create_task(serving)
    undo = in_forked_children(lambda: loop.call_soon(os._exit, 0))
    try:
        while True:
            try:
                return loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt) as error:
                if task.done() or is_interrupt(error):
                    raise
    finally:
        undo()


def new_event_loop(threads: int) -> asyncio.AbstractEventLoop:
    """uvloop's, where there is one: it takes a seventh off the cost of a call. `asyncio.to_thread` has `threads`.

    Threads of the process take turns more often from then on.
    """
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    loop.set_default_executor(DaemonExecutor(threads))
    sys.setswitchinterval(SWITCH_SECONDS)
    # The allocator of glibc returns freed memory to the system, and takes it again for the next call, beyond twice the
    # size of the largest block that was ever freed: this is one.
    bytearray(_LARGEST_BUFFER)
    return loop
