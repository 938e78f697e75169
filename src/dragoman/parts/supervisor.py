"""Starts parts in order, restarts their loops when they fail, and stops parts in reverse."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from dragoman.calls.interrupts import raise_if_stopped
from dragoman.clock import Clock, sleep
from dragoman.errors import ConfigError, InternalError, PartFailed
from dragoman.parts.part import Contribution, Loop, Step
from dragoman.parts.restarts import RestartLimit, delay_before_restart
from dragoman.telemetry.log import Logger, exception_facts

_SHORTEST_STOP = 0.5
"""Seconds that each part is given to stop, however late it is."""


_FAILURES = (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError)


class Child(Struct, frozen=True, eq=False):
    """A part of one runtime, and the tasks of its loops."""

    name: str
    contribution: Contribution
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Supervisor:
    """Lives on the event loop from `start` on; parts are added before."""

    def __init__(self, clock: Clock, logger: Logger, limit: RestartLimit | None = None) -> None:
        self._clock = clock
        self._logger = logger
        self._limit = limit or RestartLimit()
        self._children: list[Child] = []
        self._started: list[Child] = []
        self._missing: dict[str, None] = {}
        self._starting: asyncio.Task[Any] | None = None
        self._is_stopping = False

    def add(self, name: str, contribution: Contribution) -> None:
        """Add a part, behind those that are there. Raises `ConfigError` for a name that is taken."""
        if any(child.name == name for child in self._children):
            raise ConfigError([("parts", f"there are two parts called {name!r}")])
        self._children.append(Child(name, contribution))

    def __iter__(self) -> Iterator[Contribution]:
        """What the parts contribute, in order."""
        return (child.contribution for child in self._children)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parts, in order."""
        return tuple(child.name for child in self._children)

    @property
    def missing(self) -> tuple[str, ...]:
        """The parts that have a loop that was given up, or that are in trouble."""
        return tuple({**self._missing, **self.troubles})

    @property
    def troubles(self) -> dict[str, str]:
        """Why parts cannot work before the server is restarted, by their names."""
        found = ((child.name, child.contribution.trouble()) for child in self._children)
        return {name: reason for name, reason in found if reason is not None}

    async def start(self) -> None:
        """Start every part, in order; raises `PartFailed` for the first that cannot be started.

        Cancelled if the parts are stopped meanwhile.
        """
        self._starting = asyncio.current_task()
        for child in self._children:
            try:
                await _take(child.contribution.start)
            except _FAILURES as error:
                raise_if_stopped(error)
                raise PartFailed(child.name, error) from error
            self._started.append(child)
            if self._is_stopping:  # Its start has ignored the cancellation.
                await self.stop(time.monotonic())
                raise asyncio.CancelledError
            for loop in child.contribution.loops:
                running = self._keep_running(child.name, loop)
                child.tasks.append(asyncio.create_task(running, name=f"{child.name}: {loop.name}"))
        self._starting = None

    def drain(self) -> None:
        """Tell every part that the server is about to stop."""
        for child in self._started:
            if child.contribution.drain is not None:
                try:
                    child.contribution.drain()
                except _FAILURES as error:
                    raise_if_stopped(error)
                    facts = {"part": child.name, **exception_facts(error, InternalError.code)}
                    self._logger.error("a part failed to prepare for the stop", facts)

    async def stop(self, end: float) -> None:
        """Stop every part that was started, in reverse, until `end` by `time.monotonic`; what fails is logged."""
        self._is_stopping = True
        if self._starting is not None and self._starting is not asyncio.current_task():
            self._starting.cancel()
        while self._started:
            child = self._started.pop()
            for task in child.tasks:
                task.cancel()
            await self._wait(child, child.tasks, end, "the loops of a part took too long to end")
            stopping = asyncio.create_task(self._stop(child), name=f"stop {child.name}")
            await self._wait(child, [stopping], end, "the stop of a part took too long")
            stopping.cancel()

    async def _wait(self, child: Child, tasks: list[asyncio.Task[None]], end: float, complaint: str) -> None:
        """Wait for tasks of a part, but not for ever."""
        timeout = max(end - time.monotonic(), _SHORTEST_STOP)
        if tasks and (await asyncio.wait(tasks, timeout=timeout))[1]:
            self._logger.error(complaint, {"part": child.name, "timeoutMs": int(timeout * 1000)})

    async def _stop(self, child: Child) -> None:
        try:
            await _take(child.contribution.stop)
        except _FAILURES as error:
            raise_if_stopped(error)
            facts = {"part": child.name, **exception_facts(error, InternalError.code)}
            self._logger.error("the stop of a part failed", facts)

    async def _keep_running(self, part: str, loop: Loop) -> None:
        failures: list[float] = []
        while True:
            try:
                await loop.run()
                return
            except _FAILURES as error:
                raise_if_stopped(error)
                facts = {"part": part, "loop": loop.name, **exception_facts(error, InternalError.code)}
                if self._is_stopping:
                    self._logger.error("the end of a loop failed", facts)
                    return
                now = self._clock.monotonic()
                failures = [*failures, now][-self._limit.most - 1 :]
                delay = delay_before_restart(failures, now, self._limit)
            if delay is None:
                self._missing[part] = None
                self._logger.error("a loop failed too often and is not restarted", facts)
                return
            self._logger.warn("a loop failed and is restarted", {**facts, "delayMs": int(delay * 1000)})
            await sleep(self._clock, delay)


async def _take(step: Step | None) -> None:
    done = None if step is None else step()
    if inspect.isawaitable(done):
        await done
