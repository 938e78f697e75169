"""Calls through the whole pipeline, in process: `python -m bench.in_process [ROUNDS] [SECONDS]` prints JSON."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import dragoman
from bench.servers.dragoman_tools import noop
from dragoman.telemetry.log import CompletionRecord, Entry, StructuredLogger

_WORKERS = 32
_SETTINGS = {"resources": {"max_concurrent_executions": 64}}


class Records:
    """A sink that counts completion records."""

    count = 0

    def put(self, entry: Entry) -> None:
        if isinstance(entry, CompletionRecord):
            self.count += 1


async def _sequential(runtime: dragoman.Runtime, calls: int) -> None:
    for _ in range(calls):
        (await runtime.call("noop")).unwrap()


async def _concurrent(runtime: dragoman.Runtime, calls: int) -> None:
    await asyncio.gather(*(_sequential(runtime, calls // _WORKERS) for _ in range(_WORKERS)))


async def measure(rounds: int, seconds: float) -> dict[str, Any]:
    """Calls a second and CPU microseconds per call; raises when a call failed, or left no record or two."""
    ways: dict[str, Callable[[dragoman.Runtime, int], Awaitable[None]]] = {
        "one after the other": _sequential,
        f"{_WORKERS} at a time": _concurrent,
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    records = Records()
    made = 0
    async with dragoman.open([noop], _SETTINGS, logger=StructuredLogger(records.put)) as runtime:
        calls = 100 * _WORKERS
        for _ in range(rounds + 1):
            for way, make in ways.items():
                started, spent = time.perf_counter(), time.process_time()
                await make(runtime, calls)
                rates[way].append(calls / (time.perf_counter() - started))
                cpu[way].append((time.process_time() - spent) / calls * 1e6)
                made += calls
            calls = max(1, int(rates[way][0] * seconds) // _WORKERS) * _WORKERS
    if records.count != made:
        raise SystemExit(f"{records.count} records of {made} calls")
    return {
        way: {
            "best": max(warm),
            "median": statistics.median(warm),
            "rounds": [round(rate) for rate in warm],
            "cpu_us": min(cpu[way][1:]),
        }
        for way, (_, *warm) in rates.items()
    }


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.4
    print(json.dumps(asyncio.run(measure(rounds, seconds))))
