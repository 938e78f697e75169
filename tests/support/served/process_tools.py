"""Tools that leave processes behind, raise what ends programs, and crash."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from dragoman import ToolContext, prompt, resource, tool

LIFETIME = 60
"""Seconds that a process lives that nobody ends."""


@tool
def start_program() -> int:
    """Leaves a program behind, as `command &` in a shell does; returns its process id."""
    return int(subprocess.check_output(f"sleep {LIFETIME} >/dev/null 2>&1 & echo $!", shell=True, close_fds=False))


@tool
async def fork_on_the_loop() -> int:
    """Leaves a forked child behind, which does not return; returns its process id."""
    return _fork()


@tool
def fork_on_a_thread() -> int:
    """Leaves a forked child behind, which does not return; returns its process id."""
    return _fork()


def _fork() -> int:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)  # So that the log has an end.
        os.dup2(2, 1)
        time.sleep(LIFETIME)
        os._exit(0)
    return child


@tool
async def return_in_a_child_of_the_loop() -> int:
    """Returns twice: in this process, and in a forked child."""
    return os.fork()


@tool
def return_in_a_child_of_a_thread() -> int:
    """Returns twice: in this process, and in a forked child."""
    return os.fork()


ENDS: dict[str, type[BaseException]] = {
    each.__name__: each for each in (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)
}


@tool
async def raise_on_the_loop(end: str) -> NoReturn:
    """Raises what ends programs or tasks."""
    raise ENDS[end]


@tool
def raise_on_a_thread(end: str) -> NoReturn:
    """Raises what ends programs or tasks."""
    raise ENDS[end]


@tool
async def raise_in_a_task(end: str) -> None:
    """Starts a task that raises what ends programs, and does not wait for it."""

    async def fail() -> NoReturn:
        raise ENDS[end]

    _tasks.append(asyncio.create_task(fail()))
    await asyncio.sleep(0.01)


_tasks: list[asyncio.Task[Any]] = []


@resource("ending://resource")
async def ending_resource() -> NoReturn:
    """Raises what ends programs."""
    raise KeyboardInterrupt


@prompt
async def ending_prompt() -> NoReturn:
    """Raises what ends programs."""
    raise KeyboardInterrupt


@tool
async def hold(seconds: float, ctx: ToolContext) -> str:
    """Takes its time."""
    ctx.logger.info("under way")
    await asyncio.sleep(seconds)
    return "held"


@tool
async def ignore_signals() -> None:
    """Takes SIGTERM for itself."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@tool
def exit_at_once(code: int) -> None:
    """Ends the process without a word."""
    os._exit(code)


@tool
async def crash_by_null_pointer() -> None:
    """Ends the process with a segmentation fault."""
    ctypes.string_at(0)


@tool
def where() -> int:
    """The process that it runs in."""
    return os.getpid()


@tool
def log_much(entries: int, length: int, ctx: ToolContext) -> int:
    """Logs entries of that many characters."""
    for _ in range(entries):
        ctx.logger.info("noise", {"text": "x" * length})
    return entries


class SlowImport:
    """Has the first import of the SDK wait for a file, so that a test decides how long it takes."""

    def __init__(self, gate: str) -> None:
        self._gate = Path(gate)

    def find_spec(self, name: str, *_: object) -> None:
        if name == "mcp":
            sys.meta_path.remove(self)  # type: ignore[arg-type]
            print('{"message":"loading the SDK"}', file=sys.stderr, flush=True)
            self._gate.read_text()


if "SLOW_IMPORT" in os.environ:
    sys.meta_path.insert(0, SlowImport(os.environ["SLOW_IMPORT"]))  # type: ignore[arg-type]
