"""Starts calls, knows which are under way, and sees them out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from dragoman.calls.call import Call, Completion, Outcome
from dragoman.calls.deadlines import Deadlines
from dragoman.calls.pipeline import Pipeline
from dragoman.calls.threads import Threads
from dragoman.errors import Abandoned, Stopping, ToolError
from dragoman.lifespans import Lifespan
from dragoman.telemetry.load import LagMonitor
from dragoman.telemetry.log import Logger


class Runner:
    """Runs each call in a task of its own, through the pipeline for its kind of work."""

    def __init__(
        self,
        tools: Pipeline,
        under_way: dict[Call, Pipeline],
        deadlines: Deadlines,
        threads: Threads,
        lag: LagMonitor,
        logger: Logger,
        on_submit: Sequence[Callable[[Call], None]],
        special: Mapping[str, Pipeline] | None = None,
    ) -> None:
        """`on_submit`: each sees every call before it starts. `special`: by tool, another pipeline than for `tools`."""
        self._tools = tools
        self._special = special or {}
        self._clock = tools.recorder.clock
        self._deadlines = deadlines
        self._threads = threads
        self._lag = lag
        lag.under_way = under_way
        self._logger = logger
        self._under_way = under_way
        self._start: Callable[[Any], asyncio.Task[None]] = _not_started
        self._start_later: Callable[[Any], asyncio.Task[None]] = _not_started
        self._on_submit = on_submit

    @property
    def under_way(self) -> int:
        """How many calls have not ended."""
        return len(self._under_way)

    def start(self) -> None:
        """Belong to the running event loop. Kept, because asking for it costs a system call each time."""
        self._start = self._start_later = partial(asyncio.Task, loop=asyncio.get_running_loop(), name="call")
        if sys.version_info >= (3, 12):
            self._start = partial(self._start_later, eager_start=True)

    def submit(self, call: Call, pipeline: Pipeline | None = None, *, later: bool = False) -> None:
        """Start a call, of a tool unless another pipeline is given; its answer goes to `call.reply`.

        With `later`, it starts in the next turn of the loop. Calls from many sockets are then read together, and their
        answers sent together, which costs the system less than to read and write in turns.
        """
        if pipeline is None:
            pipeline = self._special.get(call.name, self._tools)
        for see in self._on_submit:
            see(call)
        if self._lag.is_idle:
            self._lag.wake()
        # Before it starts: where tasks start eagerly, it may have ended when that returns.
        self._under_way[call] = pipeline
        start = self._start_later if later else self._start
        try:
            call.task = start((pipeline.service if call.trace is None else pipeline.traced)(call))
        except BaseException:
            self._under_way.pop(call, None)
            raise

    def refuse(self, call: Call, error: ToolError) -> None:
        """Answer a call that does not begin, and record it."""
        call.answer(Outcome(error=error))
        self._under_way.pop(call, self._tools).recorder.record(call, Completion.TOOL_ERROR, error)
        if call.task is not None:
            call.task.cancel()

    async def drain(self, timeout: float) -> bool:
        """Wait until every call that is under way now has ended; False when some have not by then.

        Calls that come later are refused at once. Clients that try again and again cannot prolong the stop with them.
        """
        calls = [call for call in self._under_way if call.task is not None and not call.task.done()]
        if calls and timeout > 0:
            await asyncio.wait([call.task for call in calls if call.task is not None], timeout=timeout)
        return self._under_way.keys().isdisjoint(calls)

    async def ended(self, lifespan: Lifespan) -> None:
        """Wait until every call of a tool with this lifespan that is under way now has ended."""
        calls = [call for call in self._under_way if call.tool.lifespan is lifespan]
        if tasks := [call.task for call in calls if call.task is not None]:
            await asyncio.wait(tasks)

    def abandon(self) -> int:
        """Record what is still running as timed out and stop caring about it; how many calls that were.

        Those that go on after a restart do not count.
        """
        for call in tuple(self._under_way):
            if not call.ran:  # It came too late to begin.
                self.refuse(call, Stopping())
        abandoned = tuple(self._under_way.items())
        for call, pipeline in abandoned:
            call.duration_ms = int((self._clock.monotonic() - call.started) * 1e6) / 1000
            call.cancellation.set("shutdown")
            call.answer(Outcome(error=Abandoned(retryable=call.tool.definition.hints.are_harmless)))
            pipeline.recorder.record(call, Completion.TIMEOUT)
            if call.task is not None:
                call.task.cancel()
        lost = sum(not call.resumes for call, _ in abandoned)
        if lost:
            self._logger.warn("slots abandoned at shutdown", {"count": lost})
        self._deadlines.stop()
        self._threads.stop()
        return lost


def _not_started(run: Any) -> NoReturn:
    run.close()
    raise RuntimeError("the runtime has not been started")
