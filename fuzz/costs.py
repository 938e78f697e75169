"""Finds inputs that cost too much: CPU time beyond a bound, or memory that stays.

1. CPU: an input may take `Bounds.seconds`, plus so much for each of its bytes and steps. A step is whatever has a cost
   of its own however short it is: a message, a header, ten chunks that are read.
2. Held memory: what a connection keeps after its requests are answered must not grow with what they said.
3. Kept memory: an input that is repeated must not leave more behind each time.

Noise only adds to a cost, so an input beyond a bound is measured again, and the least of all its measurements counts.
Memory is what Python's own allocator has in blocks and what malloc has given out; both are exact, and cheap to read.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass

TRIES = 4
REPETITIONS, BATCHES = 16, 24
_ENOUGH_SECONDS = 2.0  # Of CPU time for measuring again: libFuzzer ends an input that takes 20 seconds.
_BLOCK = 64  # Bytes, roughly: Python's allocator has blocks of 16 to 512.


class CostFound(AssertionError):
    """An input costs more than it may."""


@dataclass(frozen=True)
class Cost:
    """What one input took."""

    cpu: float
    """Seconds of CPU time until its requests were answered."""
    steps: int = 1
    held: int = 0
    """Bytes that were in use after that, with its connection still open."""


@dataclass(frozen=True)
class Bounds:
    """What an input may cost. `seconds` is for any, however short."""

    seconds: float
    seconds_per_byte: float
    seconds_per_step: float
    held: int
    kept: int = 32
    kept_per_byte: float = 1 / 16
    """Bytes, each time that an input is repeated. Samples of the load are kept for a while, more if it takes longer."""

    def seconds_for(self, size: int, steps: int) -> float:
        return self.seconds + size * self.seconds_per_byte + steps * self.seconds_per_step

    def kept_for(self, size: int) -> float:
        return self.kept + size * self.kept_per_byte

    def __str__(self) -> str:
        return (
            f"CPU: {self.seconds * 1e3:g} ms, plus {self.seconds_per_byte * 1e6:g} µs per byte and "
            f"{self.seconds_per_step * 1e6:g} µs per message, header or ten chunks; "
            f"memory: {self.held:,} bytes held by an open connection, "
            f"{self.kept} bytes and {self.kept_per_byte:g} per byte kept each time that an input is repeated"
        )


class CostOracle:
    """Runs inputs, and raises `CostFound` for one that is beyond the bounds."""

    def __init__(self, run: Callable[[bytes], Cost], bounds: Bounds) -> None:
        self._run = run
        self._bounds = bounds

    def __call__(self, data: bytes) -> None:
        """Run an input."""
        before = memory_in_use()
        cost = self._run(data)
        grown = memory_in_use() - before
        limit = self._bounds.seconds_for(len(data), cost.steps)
        if cost.cpu > limit or cost.held > self._bounds.held:
            self._look_again(data, limit, cost)
        if grown > self._bounds.kept_for(len(data)):
            self._check_growth(data)

    def _look_again(self, data: bytes, limit: float, cost: Cost) -> None:
        cpu, held, spent = cost.cpu, cost.held, 0.0
        for _ in range(TRIES):
            if spent > _ENOUGH_SECONDS or (cpu <= limit and held <= self._bounds.held):
                break
            again = self._run(data)
            cpu, held, spent = min(cpu, again.cpu), min(held, again.held), spent + again.cpu
        what = f"an input of {len(data):,} bytes, {cost.steps:,} steps"
        if cpu > limit:
            per_byte = cpu / max(1, len(data)) * 1e6
            raise CostFound(
                f"{what}, takes {cpu * 1e3:,.1f} ms of CPU time, {per_byte:,.2f} µs per byte; "
                f"the bound is {limit * 1e3:,.1f} ms"
            )
        if held > self._bounds.held:
            raise CostFound(
                f"{what}, leaves {held:,} bytes held by its open connection, {held / max(1, len(data)):,.1f} per byte; "
                f"the bound is {self._bounds.held:,}"
            )

    def _check_growth(self, data: bytes) -> None:
        """Repeat an input, once and then in batches: if nothing has grown, what it leaves behind is bounded."""
        limit = self._bounds.kept_for(len(data))
        spent = 0.0
        started = before = memory_in_use()
        for times in (1, *[REPETITIONS] * BATCHES):
            for _ in range(times):
                spent += self._run(data).cpu
                if spent > _ENOUGH_SECONDS:
                    return
            after = memory_in_use()
            if after - before <= limit * times:
                return
            before = after
        kept = (before - started) / (1 + BATCHES * REPETITIONS)
        raise CostFound(
            f"an input of {len(data):,} bytes leaves {kept:,.0f} bytes behind each time that it is repeated, "
            f"{kept / max(1, len(data)):,.2f} per byte; the bound is {limit:,.0f}"
        )


def memory_in_use() -> int:
    """Bytes, roughly; garbage is collected first."""
    gc.collect()
    return sys.getallocatedblocks() * _BLOCK + _malloced()


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _find_malloced() -> Callable[[], int]:
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return lambda: 0  # Not glibc: large objects are not seen.
    mallinfo.restype = _Mallinfo

    def malloced() -> int:
        found = mallinfo()
        return int(found.uordblks + found.hblkhd)

    return malloced


_malloced = _find_malloced()
