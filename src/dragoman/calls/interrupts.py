"""Whether a `KeyboardInterrupt` is Ctrl-C, or a function that raised it; and the same for a cancellation."""

from __future__ import annotations

import asyncio
import signal
import threading


def is_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C may have raised `error`: then it is for the process to end.

    Python raises it on the main thread only, and only where nobody has replaced its signal handler; a server has.
    `asyncio.run` has, too, but its handler raises it when Ctrl-C is pressed once more.
    """
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler or _was_raised_by_asyncio(error)


def raise_interrupt(error: BaseException) -> None:
    """Raise `error` again if Ctrl-C may have raised it."""
    if is_interrupt(error):
        raise error


def raise_if_stopped(error: BaseException) -> None:
    """Raise `error` again if Ctrl-C may have raised it, or if it is the cancellation of the current task."""
    raise_interrupt(error)
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error


def _was_raised_by_asyncio(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is asyncio.Runner._on_sigint.__code__  # type: ignore[attr-defined]
