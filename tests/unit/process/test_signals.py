"""What a signal does to the process that it finds in any state. How servers stop is in `tests/interaction`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from dragoman.process.signals import on_signals
from tests.support.processes import environment
from tests.support.waiting import PATIENCE

WITHOUT_ANOTHER_THREAD = """
import asyncio, signal, threading
from dragoman.process.signals import on_signals

async def main():
    stopping = asyncio.Event()
    stopper = on_signals(stopping.set, 60)
    threading.stack_size(1 << 46)  # More than there can be: no thread starts from here on.
    signal.raise_signal(signal.SIGTERM)
    await stopping.wait()
    stopper.restore()

asyncio.run(main())
"""

NEVER_ENDS = """
import asyncio, signal, time
from dragoman.process.signals import on_signals

async def main():
    on_signals(lambda: None, {longest})
    for _ in range({signals}):
        signal.raise_signal(signal.SIGINT)
    time.sleep(60)

asyncio.run(main())
"""


def run(script: str) -> int:
    unmeasured = environment()
    return subprocess.run([sys.executable, "-c", script], env=unmeasured, timeout=PATIENCE, check=False).returncode


@pytest.mark.slow
def test_a_process_that_can_start_no_more_threads_stops_in_order() -> None:
    assert run(WITHOUT_ANOTHER_THREAD) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("longest", "signals"), [(0.01, 1), (60, 2)], ids=["late", "asked twice"])
def test_a_process_that_blocks_its_loop_ends_when_it_is_late_or_asked_twice(longest: float, signals: int) -> None:
    assert run(NEVER_ENDS.format(longest=longest, signals=signals)) == 128 + signal.SIGINT


@pytest.mark.parametrize("is_asked", [False, True], ids=["idle", "stopping"])
async def test_what_was_there_before_is_there_again(is_asked: bool) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    threads = set(threading.enumerate())
    stopping = asyncio.Event()
    stopper = on_signals(stopping.set, 60)
    if is_asked:
        signal.raise_signal(signal.SIGTERM)
        await stopping.wait()
    stopper.restore()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert set(threading.enumerate()) <= threads


async def test_only_the_main_thread_listens_to_signals() -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def listen() -> None:
        stopper = on_signals(lambda: None, 60)
        assert signal.getsignal(signal.SIGTERM) is before
        stopper.restore()

    await asyncio.to_thread(asyncio.run, listen())
    assert signal.getsignal(signal.SIGTERM) is before
