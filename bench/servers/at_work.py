"""How a process is asked to work for a while, and tells what it did: a line of JSON in, a line of JSON out.

Everybody who is measured beside agents runs it, some in environments of their own, so it needs nothing but Python.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any


def orders() -> Iterator[dict[str, Any]]:
    """The work, round by round: `senders`, `agents` and `seconds`."""
    print("ready", flush=True)
    for line in sys.stdin:
        yield json.loads(line)


def answer(calls: int, seconds: float, cpu: float) -> None:
    print(json.dumps({"calls": calls, "seconds": seconds, "cpu": cpu}), flush=True)


def spent(work: Callable[[float], int], seconds: float) -> None:
    """Answer how often `work` has done it until a moment of `time.perf_counter`."""
    began, cpu = time.perf_counter(), time.process_time()
    calls = work(began + seconds)
    answer(calls, time.perf_counter() - began, time.process_time() - cpu)


async def repeated(send: Callable[[int], Awaitable[object]], senders: int, seconds: float) -> int:
    """Answer how often senders have sent, each as soon as it is answered, and wait until all have been answered."""
    counts = [0] * senders
    began, cpu = time.perf_counter(), time.process_time()

    async def keep_sending(number: int) -> None:
        while time.perf_counter() < began + seconds:
            await send(number)
            counts[number] += 1

    await asyncio.gather(*map(keep_sending, range(senders)))
    answer(sum(counts), time.perf_counter() - began, time.process_time() - cpu)
    return sum(counts)
