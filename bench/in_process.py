"""Calls through the whole pipeline, in process: `python -m bench.in_process [ROUNDS] [SECONDS]` prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable

import dragoman
from bench.rounds import ENOUGH_ROUNDS, Figures, Run, compared, rotated
from bench.servers.dragoman_tools import noop
from dragoman.telemetry.log import CompletionRecord, Entry, StructuredLogger

_AT_A_TIME = 32
ONE_BY_ONE, TOGETHER = "Dragoman, one after the other", f"Dragoman, {_AT_A_TIME} at a time"
AWAITED = "an awaited function"
"""The limit: it does what the tool does, and nothing is around it."""
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
    await asyncio.gather(*(_sequential(runtime, calls // _AT_A_TIME) for _ in range(_AT_A_TIME)))


async def _bare(_: dragoman.Runtime, calls: int) -> None:
    for _ in range(calls):
        await _nothing()


async def _nothing() -> None:
    """What the tool does."""


async def measure(rounds: int, seconds: float) -> Figures:
    """What a call takes each way; raises when a call failed, or left no record or two."""
    ways: dict[str, Callable[[dragoman.Runtime, int], Awaitable[None]]] = {
        ONE_BY_ONE: _sequential,
        TOGETHER: _concurrent,
        AWAITED: _bare,
    }
    runs: dict[str, dict[int, Run]] = {way: {} for way in ways}
    records = Records()
    made = 0
    async with dragoman.open([noop], _SETTINGS, logger=StructuredLogger(records.put)) as runtime:
        calls = 100 * _AT_A_TIME
        for turn in range(rounds + 1):
            for way in rotated([*ways], turn):
                started, spent = time.perf_counter(), time.process_time()
                await ways[way](runtime, calls)
                runs[way][turn] = Run(calls, time.perf_counter() - started, time.process_time() - spent, [])
                made += calls if way != AWAITED else 0
            calls = max(1, int(runs[TOGETHER][0].rate * seconds) // _AT_A_TIME) * _AT_A_TIME
    if records.count != made:
        raise SystemExit(f"{records.count} records of {made} calls")
    for way in ways:
        del runs[way][0]  # It warms up.
    return compared(runs, ONE_BY_ONE)


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ENOUGH_ROUNDS
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.15
    print(json.dumps(asyncio.run(measure(rounds, seconds))))
