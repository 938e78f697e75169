"""Waits that code makes on the system's own clocks, counted in place of being waited for."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dragoman

_SOURCE = str(Path(dragoman.__file__).parent)


@contextmanager
def waits_recorded() -> Iterator[list[float]]:
    """The seconds of each wait that the package begins in the running loop, or blocks for; each is over at once."""
    loop, seconds = asyncio.get_running_loop(), list[float]()
    call_at, block = loop.call_at, time.sleep

    def call_soon_instead(when: float, callback: Callable[..., object], *args: Any, **named: Any) -> Any:
        if not _is_ours():
            return call_at(when, callback, *args, **named)
        seconds.append(when - loop.time())
        return call_at(loop.time(), callback, *args, **named)

    loop.call_at = call_soon_instead  # type: ignore[method-assign]
    time.sleep = seconds.append
    try:
        yield seconds
    finally:
        loop.call_at = call_at  # type: ignore[method-assign]
        time.sleep = block


def _is_ours() -> bool:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_SOURCE):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
