"""The event loop of a server that has the process to itself."""

from __future__ import annotations

import asyncio

from dragoman.calls.threads import DaemonExecutor


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
