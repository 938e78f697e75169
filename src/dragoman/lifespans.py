"""Lifespans: async context managers that are entered before calls are taken, and left after the last call has ended."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

MakeLifespan: TypeAlias = Callable[..., AbstractAsyncContextManager[Any]]
"""Takes no argument, or the runtime. Usually a function with `@asynccontextmanager`."""


class Lifespan:
    """A context manager that is entered once and left once. `value` is what it gives; None before it is entered.

    It runs in a task of its own: task groups and cancel scopes can be left only in the task that entered them.
    `explain` makes the error that `enter` raises from what the context manager raised.
    Raises `TypeError` with a reason for what is not a function that returns an async context manager.
    """

    __slots__ = ("_entered", "_explain", "_failure", "_leaving", "_make", "_task", "value")

    def __init__(self, make: MakeLifespan, explain: Callable[[BaseException], BaseException] | None = None) -> None:
        self._make = _checked(make)
        self._explain = explain or (lambda error: error)
        self._leaving = asyncio.Event()
        self._entered: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self.value: Any = None

    async def enter(self, runtime: Any) -> None:
        """Enter the context manager; raises what it raises."""
        loop = asyncio.get_running_loop()
        self._entered = loop.create_future()
        self._task = loop.create_task(self._live(runtime, self._entered), name="lifespan")
        try:
            await self._entered
        except BaseException:
            self._task.cancel()
            raise

    async def leave(self, timeout: float | None = None) -> bool:
        """Leave the context manager; False if that was cancelled after `timeout` seconds. Raises what it raises.

        One that was never entered is left alone, and one that is being entered is cancelled.
        """
        if self._task is None or self._entered is None:
            return True
        self._leaving.set()
        if not self._entered.done():
            self._task.cancel()
        await asyncio.wait((self._task,), timeout=timeout)
        if not self._task.done():
            self._task.cancel()
            return False
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return True

    async def _live(self, runtime: Any, entered: asyncio.Future[None]) -> None:
        try:
            async with self._make(*((runtime,) if _takes_one(self._make) else ())) as self.value:
                if not entered.done():
                    entered.set_result(None)
                await self._leaving.wait()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if entered.done() or (task is not None and task.cancelling()):
                entered.cancel()
                raise
            entered.set_exception(self._explain(error))  # Its own, such as that of a task that it waited for.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # Kept for the task that waits: out of this one, the last two would end the event loop.
            if entered.done():
                self._failure = error
            else:
                entered.set_exception(self._explain(error))


def _checked(make: Any) -> MakeLifespan:
    if inspect.isasyncgenfunction(make):
        raise TypeError("lifespan is an async generator: decorate it with @contextlib.asynccontextmanager")
    if hasattr(type(make), "__aenter__"):
        raise TypeError("lifespan is a context manager: give the function that returns it, without calling it")
    if not callable(make) or inspect.iscoroutinefunction(make) or inspect.isgeneratorfunction(make):
        raise TypeError("lifespan must be an async generator function with @contextlib.asynccontextmanager")
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # Some callables have none.
        return make  # type: ignore[no-any-return]
    if not (_binds(signature, None) or _binds(signature)):
        raise TypeError("lifespan takes no argument, or one: the runtime")
    return make  # type: ignore[no-any-return]


def _takes_one(make: MakeLifespan) -> bool:
    try:
        return _binds(inspect.signature(make), None)
    except (TypeError, ValueError):
        return True


def _binds(signature: inspect.Signature, *arguments: Any) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
