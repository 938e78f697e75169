"""How a server is asked to stop, and what happens when it does not."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

_LAST_MOMENT = 2.0


@dataclass(frozen=True)
class Stopper:
    """A way to stop a server besides a signal, and the end of both."""

    stop: Callable[[], None]
    """Start the stop that a signal starts, unless it has been started; on the event loop."""
    restore: Callable[[], None]
    """Put back the signal handlers that were there before."""


def on_signals(stop: Callable[[], None], longest: float) -> Stopper:
    """Call `stop` on SIGTERM and SIGINT, and end the process if that takes more than `longest` seconds.

    These are plain signal handlers, not the loop's own: they run even while a tool blocks the loop, and then see to it
    that the process ends all the same. A handler interrupts the main thread anywhere, with whatever lock that holds and
    even where no thread can be started any more: so the one that ends a late process is there before, and only told.
    """
    if threading.current_thread() is not threading.main_thread():
        return Stopper(stop, lambda: None)
    loop = asyncio.get_running_loop()
    told: SimpleQueue[int | None] = SimpleQueue()  # Whose `put` may interrupt itself.
    watchdog = threading.Thread(target=_watch, args=(told, longest), name="dragoman-watchdog", daemon=True)
    watchdog.start()
    is_stopping = False

    def handle(number: int, frame: Any) -> None:
        nonlocal is_stopping
        if is_stopping:
            os._exit(128 + number)
        is_stopping = True
        told.put(128 + number)
        loop.call_soon_threadsafe(stop)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)
        told.put(None)
        watchdog.join()

    def begin() -> None:
        if not is_stopping:
            handle(signal.SIGTERM, None)

    return Stopper(begin, restore)


async def start_or_stop(start: Coroutine[Any, Any, None], stopping: asyncio.Event) -> bool:
    """Whether a server was started; False if it was told to stop first, and what it has begun is to be stopped."""
    starting, told = asyncio.create_task(start), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((starting, told), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            return True
        starting.cancel()
        return False
    finally:
        told.cancel()


def _watch(told: SimpleQueue[int | None], longest: float) -> None:
    """End the process with the code that comes, unless it is followed by None in time."""
    code = told.get()
    if code is not None:
        try:
            told.get(timeout=longest)
        except Empty:
            os._exit(code)


def leave(code: int) -> NoReturn:
    """End the process: exit handlers have a moment to run, but no thread that a tool left behind is waited for."""
    late = threading.Timer(_LAST_MOMENT, os._exit, (code,))
    late.daemon = True
    late.start()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # Python has none where the descriptor was closed.
            stream.flush()
    os._exit(code)
