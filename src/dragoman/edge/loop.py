"""The event loop of a server that has the process to itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from dragoman.calls.interrupts import is_interrupt
from dragoman.calls.threads import DaemonExecutor

T = TypeVar("T")


def run_to_end(loop: asyncio.AbstractEventLoop, serving: Coroutine[Any, Any, T]) -> T:
    """What `serving` returns, whatever happens besides.

    `SystemExit` and `KeyboardInterrupt` in a task that a tool has started leave the loop. That ends the task and what
    waits for it, but a tool cannot end the server: the loop goes on.
    """
    task = loop.create_task(serving)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done() or is_interrupt(error):
                raise


def new_event_loop(threads: int) -> asyncio.AbstractEventLoop:
    """uvloop's, where there is one: it takes a seventh off the cost of a call. `asyncio.to_thread` has `threads`."""
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    loop.set_default_executor(DaemonExecutor(threads))
    return loop
