"""The lifespans of everything that is served: entered in order, and left when no call needs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from dragoman.calls.interrupts import raise_interrupt
from dragoman.calls.runner import Runner
from dragoman.errors import InternalError
from dragoman.lifespans import Lifespan
from dragoman.telemetry.log import Logger, exception_facts

_SHORTEST_END = 0.5
"""Seconds that each lifespan is given to end, however late it is."""


class Lifespans:
    """Those that are entered, or will be. Lives on the event loop."""

    def __init__(self, lifespans: Iterable[Lifespan], runner: Runner, logger: Logger, timeout: float) -> None:
        """`timeout` is how many seconds a lifespan may take to end that is left while the server runs."""
        self._lifespans = list(lifespans)
        self._runner = runner
        self._logger = logger
        self._timeout = timeout
        self._is_ending = False
        self._leaving: set[asyncio.Task[None]] = set()

    async def enter(self, runtime: Any) -> None:
        """Enter them all; raises what one of them raises."""
        for lifespan in self._lifespans:
            await lifespan.enter(runtime)

    async def leave(self, end: float) -> None:
        """Leave them all, the last first, until `end` by `time.monotonic`."""
        self._is_ending = True
        for lifespan in reversed(self._lifespans):
            await self._leave(lifespan, max(end - time.monotonic(), _SHORTEST_END))

    async def exchange(
        self, runtime: Any, before: list[Lifespan], after: list[Lifespan], replace: Callable[[], None]
    ) -> None:
        """Enter the lifespans of what is coming, call `replace`, and leave those of what was replaced.

        The latter are left when the calls that need them have ended. Raises what a lifespan or `replace` raises, and
        then everything is as it was.
        """
        entered: list[Lifespan] = []
        try:
            for lifespan in after:
                if lifespan not in self._lifespans:
                    entered.append(lifespan)
                    self._lifespans.append(lifespan)
                    await lifespan.enter(runtime)
            replace()
        except BaseException:
            for lifespan in reversed(entered):
                self._let_go(lifespan)
            raise
        for lifespan in reversed(before):
            if lifespan not in after:
                self._let_go(lifespan)

    def _let_go(self, lifespan: Lifespan) -> None:
        """Leave a lifespan when the calls that need it have ended, but at the latest when the server stops."""

        async def leave() -> None:
            await self._runner.ended(lifespan)
            await self._leave(lifespan, self._timeout)
            if not self._is_ending:
                self._lifespans.remove(lifespan)

        task = asyncio.create_task(leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _leave(self, lifespan: Lifespan, timeout: float) -> None:
        try:
            if not await lifespan.leave(timeout):
                self._logger.error("the end of the lifespan took too long", {"timeoutMs": int(timeout * 1000)})
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise_interrupt(error)
            # It is somebody else's code, and no reason not to stop in order.
            self._logger.error("the end of the lifespan failed", exception_facts(error, InternalError.code))
