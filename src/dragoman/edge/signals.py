"""How a server is asked to stop, and what happens when it does not."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any


def on_signals(stop: Callable[[], None], longest: float) -> Callable[[], None]:
    """Stop on SIGTERM and SIGINT; returns how to put the handlers back.

    These are plain signal handlers, not the loop's own: they run even while a tool blocks the loop, and then see to it
    that the process ends all the same.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    loop = asyncio.get_running_loop()
    watchdog: threading.Timer | None = None

    def handle(number: int, frame: Any) -> None:
        nonlocal watchdog
        if watchdog is not None:
            os._exit(128 + number)
        watchdog = threading.Timer(longest, os._exit, (128 + number,))
        watchdog.daemon = True
        watchdog.start()
        loop.call_soon_threadsafe(stop)

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        if watchdog is not None:
            watchdog.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore
