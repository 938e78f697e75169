"""Threads for sync handlers: daemons of our own, so that one that hangs can delay neither an answer nor the exit."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

J = TypeVar("J")


class Jobs(Generic[J]):
    """Jobs for threads that take one after another, and sleep while there are none.

    Waking a thread costs more than most jobs. Jobs that are added together wake one thread, which takes them in a row.
    A thread that takes a job and leaves others wakes one more, so a job that blocks does not delay the next.
    `queue.SimpleQueue` did the same until Python 3.12. Since 3.13 it wakes a thread for each job.
    """

    def __init__(self) -> None:
        self._waiting: deque[J] = deque()
        self._signal = threading.Lock()
        """Locked, unless a thread is to look for jobs; sleeping threads wait to lock it.

        No wake-up is lost: it is unlocked after a job is added, and locked before a thread looks.
        """
        self._signal.acquire()

    def add(self, job: J) -> None:
        """Have a thread take the job; from any thread."""
        self._waiting.append(job)
        if self._signal.locked():
            self._wake_one()

    def take(self) -> J:
        """The job that has waited longest; sleeps until there is one."""
        while True:
            try:
                job = self._waiting.popleft()
            except IndexError:
                self._signal.acquire()
            else:
                if self._waiting and self._signal.locked():
                    self._wake_one()
                return job

    def _wake_one(self) -> None:
        with suppress(RuntimeError):  # Another thread has unlocked it meanwhile.
            self._signal.release()


class _Job:
    __slots__ = ("context", "done", "error", "function", "value")

    def __init__(self, function: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        self.function = function
        self.context = contextvars.copy_context()
        self.done = done
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self.context.run(self.function)
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        done, value, error = self.done, self.value, self.error
        # An exception leads to the frames that it passed through, and they lead to this job. If the job led back to the
        # exception, only the garbage collector would free what the function worked on.
        del self.done, self.value, self.error
        settle(done, value, error)


def settle(awaited: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """On the event loop: give what came of a function on a thread to whoever waits for it, if anybody still does."""
    if awaited.done():
        return
    if error is None:
        awaited.set_result(value)
    else:
        awaited.set_exception(_failure(error))


def _failure(error: BaseException) -> Exception:
    """What to raise on the loop, where some errors would mean something else than that a function failed."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    failure = RuntimeError(f"the function raised {type(error).__name__}")
    failure.__cause__ = error
    return failure


class Threads:
    """Runs functions on daemon threads, started as they are needed and kept for the next time.

    There is no limit here: a function runs under a slot, so there are never more threads than slots.
    """

    def __init__(self) -> None:
        self._jobs: Jobs[_Job | None] = Jobs()
        self._finished: deque[_Job] = deque()
        self._free = 0
        self._count = 0
        self._wake_pending = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, function: Callable[[], Any]) -> Any:
        """The function's result; it goes on by itself if nobody waits any longer."""
        self._loop = asyncio.get_running_loop()
        job = _Job(function, self._loop.create_future())
        if self._free == 0:
            self._count += 1
            threading.Thread(target=self._work, name=f"dragoman-tool-{self._count}", daemon=True).start()
        else:
            self._free -= 1
        self._jobs.add(job)
        return await job.done

    def stop(self) -> None:
        """Let idle threads go; busy ones follow when their function ends."""
        for _ in range(self._count):
            self._jobs.add(None)

    def _work(self) -> None:
        process = os.getpid()
        while (job := self._jobs.take()) is not None:
            job.run()
            if os.getpid() != process:
                os._exit(0)  # A child that the function forked, and that went on as the server: it has nothing to do.
            self._finished.append(job)
            del job  # While it waits for the next, a thread must not keep what the last one worked on.
            if not self._wake_pending:
                self._wake_pending = True
                try:
                    assert self._loop is not None
                    self._loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:
                    return  # The loop is closed: nobody is left to tell.

    def _deliver(self) -> None:
        # Cleared before the queue is emptied: a job that ends in between asks for another turn.
        self._wake_pending = False
        while self._finished:
            job = self._finished.popleft()
            self._free += 1
            job.finish()


def _run(future: list[Future[Any]], function: Callable[[], Any]) -> None:
    """Run a function, and settle its future, which is in a list so that this frame does not keep it: see `_Job`."""
    if future[0].set_running_or_notify_cancel():
        try:
            value = function()
        except BaseException as error:
            future.pop().set_exception(_failure(error))
        else:
            future.pop().set_result(value)


class DaemonExecutor(ThreadPoolExecutor):
    """For the loop of a server, whose `asyncio.to_thread` then has as many threads as there are slots.

    The standard one has a few, and the interpreter waits for them before it exits, however long they take. asyncio
    insists on the class, but all that is left of it is the interface.
    """

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._jobs: Jobs[Callable[[], None] | None] = Jobs()
        self._lock = threading.Lock()
        self._idle = self._started = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function on a thread, in the context of whoever submits it; from any thread."""
        future: Future[Any] = Future()
        call = partial(contextvars.copy_context().run, function, *args, **kwargs)
        run = partial(_run, [future], call)
        with self._lock:
            if self._idle == 0 and self._started < self._max_workers:
                self._started += 1
                threading.Thread(target=self._work, name=f"dragoman-worker-{self._started}", daemon=True).start()
            else:
                self._idle -= 1  # Below nothing: so many jobs wait for a thread.
            self._jobs.add(run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let idle threads go; busy ones follow when their function ends, and nobody waits for them."""
        for _ in range(self._started):
            self._jobs.add(None)

    def _work(self) -> None:
        process = os.getpid()
        while (run := self._jobs.take()) is not None:
            run()
            if os.getpid() != process:
                os._exit(0)
            del run
            with self._lock:
                self._idle += 1
