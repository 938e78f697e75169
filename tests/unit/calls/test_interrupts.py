"""A `KeyboardInterrupt` of the user's, and one that a tool raises."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from dragoman.calls.interrupts import is_interrupt, raise_if_stopped
from tests.support.waiting import PATIENCE


def raised() -> KeyboardInterrupt:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        return error


def test_where_python_handles_ctrl_c_an_interrupt_may_be_the_users() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert is_interrupt(raised())
    assert not is_interrupt(SystemExit())


def test_where_somebody_else_handles_ctrl_c_an_interrupt_is_not_the_users() -> None:
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        assert not is_interrupt(raised())
    finally:
        signal.signal(signal.SIGINT, before)


def test_on_another_thread_an_interrupt_is_not_the_users() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(is_interrupt(raised())))
    thread.start()
    thread.join()
    assert found == [False]


PROGRAM = """
import asyncio, os, signal
from dragoman import tool
from dragoman.app import open_runtime

@tool
async def interrupt() -> None:
    raise KeyboardInterrupt

@tool
async def be_interrupted() -> None:
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
    print("the tool went on")

async def main() -> None:
    async with open_runtime([interrupt, be_interrupted]) as runtime:
        print((await runtime.call("interrupt")).error.code, flush=True)
        await runtime.call("be_interrupted")

asyncio.run(main())
"""


@pytest.mark.slow
def test_under_asyncio_a_tool_that_interrupts_ends_its_call_and_a_second_ctrl_c_ends_the_program() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.stdout == "INTERNAL\n"
    assert ended.returncode == -signal.SIGINT


async def test_only_the_cancellation_of_the_current_task_is_raised_again() -> None:
    async def cancelled(error: BaseException) -> str:
        try:
            if isinstance(error, asyncio.CancelledError):
                raise error
            await asyncio.Event().wait()
        except BaseException as caught:
            raise_if_stopped(caught)
        return "went on"

    assert await cancelled(asyncio.CancelledError()) == "went on"
    task = asyncio.create_task(cancelled(Exception()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    raise_if_stopped(SystemExit())
    raise_if_stopped(GeneratorExit())
