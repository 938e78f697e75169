"""The same tools, in a server whose log loses every hundredth line."""

from __future__ import annotations

import os
import threading

from tools import count, crash, doze, echo, overrun, refuse, repeat, report, wait

__all__ = ["count", "crash", "doze", "echo", "overrun", "refuse", "repeat", "report", "wait"]


def _lose(lines: int, log: int) -> None:
    with open(lines, "rb") as source:
        for number, line in enumerate(source, 1):
            if number % 100:
                os.write(log, line)


_read, _write = os.pipe()
threading.Thread(target=_lose, args=(_read, os.dup(2)), daemon=True).start()
os.dup2(_write, 2)
