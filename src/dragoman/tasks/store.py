"""The runs of this process's storage, opened when they are first needed, and what everything that uses them shares."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TypeVar

import msgspec

from dragoman.agents.ledger import EntryStatus, LedgerAdmin
from dragoman.agents.pulse import LoopPulse, on_running_loop
from dragoman.agents.senders import kept_caller
from dragoman.calls.call import Call
from dragoman.changes import LedgerChanged, Publish
from dragoman.clock import Clock, Timer, sleep
from dragoman.errors import (
    ErrorCode,
    LeaseLost,
    ResourceExhausted,
    StorageClosed,
    StorageError,
    StorageLost,
    StorageUncertain,
)
from dragoman.ids import Ids
from dragoman.tasks.port import Begin, NewRun, Released, Run, RunChange, RunQuery, Runs, StoredQuestion
from dragoman.tasks.stored import UNKNOWN_OUTCOME
from dragoman.telemetry.log import Logger, exception_facts
from dragoman.tools.storage_errors import tool_error

T = TypeVar("T")

_MOST_BLOCKED = 60.0
"""Seconds that a handler may block the event loop before other processes take over the runs of this one."""
_AGAIN_SECONDS = 0.2
_TELL_SECONDS = 0.005
_UNKNOWN = msgspec.json.encode(UNKNOWN_OUTCOME)


class RunStore:
    """Belongs to the event loop."""

    def __init__(
        self,
        open_runs: Callable[[], tuple[Runs, LedgerAdmin]],
        clock: Clock,
        ids: Ids,
        logger: Logger,
        publish: Publish,
        lease_seconds: float,
    ) -> None:
        self._open = open_runs
        self.clock, self._ids, self._logger, self._publish = clock, ids, logger, publish
        self._lease = lease_seconds
        self._changes: asyncio.Future[None] | None = None
        self._telling: Timer | None = None
        self.unsettled = asyncio.Event()
        """Whether runs may have to be taken over, or tasks be begun that could not be before."""
        self.is_open = False
        self.is_stale = False
        """Whether there may be more in the store than this process knows."""
        self.is_stopping = False
        self._is_lost = False

    @cached_property
    def _ports(self) -> tuple[Runs, LedgerAdmin]:
        ports = self._open()
        pulse = LoopPulse(self.clock, _MOST_BLOCKED)
        ports[0].watch(on_running_loop(self.changed), on_running_loop(self.unsettled.set), self._lease, pulse.is_alive)
        self.unsettled.set()
        self.is_open = True
        return ports

    @property
    def runs(self) -> Runs:
        """The port. From its first use on, the lease of this process is renewed."""
        return self._ports[0]

    @property
    def admin(self) -> LedgerAdmin:
        return self._ports[1]

    @property
    def changes(self) -> asyncio.Future[None]:
        """Ends when something has changed in the store; for those that look again then."""
        if self._changes is None or self._changes.done():
            self._changes = asyncio.get_running_loop().create_future()
        return self._changes

    def changed(self) -> None:
        """Wake those who wait for `changes`: another process may have changed something."""
        self.is_stale = True
        self.wake()

    def tell_others(self) -> None:
        """Wake the other processes of the server, which look at the store by themselves only now and then."""
        self.wake()
        if self._telling is None:
            self._telling = self.clock.call_later(_TELL_SECONDS, self._tell_now)

    def now(self) -> float:
        """Seconds of the epoch."""
        return self.clock.now().timestamp()

    def message_id(self) -> str:
        """A UUID of version 4 that begins with the time: random ones would be all over the ledger's index."""
        stamp = f"{int(self.now() * 1000):012x}"
        made = self._ids.run_id()
        return f"{stamp[:8]}-{stamp[8:]}{made[13:] or f'-{made}'}"  # Ids that a test has made may be short.

    def new_run(
        self,
        call: Call,
        owner: str,
        request_id: str,
        arguments: bytes,
        ttl: float,
        *,
        begins: bool = True,
        task_id: str | None = None,
        capabilities: bytes = b"{}",
        answers: Sequence[StoredQuestion] = (),
    ) -> NewRun:
        """The run of a call, which is kept for so many seconds."""
        now = self.now()
        return NewRun(
            message_id=self.message_id(),
            owner=owner,
            tool=call.tool.definition.name,
            request_id=request_id,
            arguments=arguments,
            at=now,
            expires_at=now + ttl,
            correlation_id=call.correlation_id,
            caller=kept_caller(call.origin.caller),
            is_repeatable=call.tool.definition.hints.are_harmless,
            begins=begins,
            task_id=task_id,
            capabilities=capabilities,
            answers=answers,
        )

    async def add(self, new: NewRun) -> Run:
        """As `Runs.add`, which may raise before it is awaited: a writer that is closed, or has too much to do."""
        try:
            return await self.runs.add(new)
        except StorageLost:
            self._lose()
            raise
        except StorageUncertain:
            mark = new.owner, new.request_id, new.correlation_id, new.at
            await self._let_go(lambda run: (run.owner, run.request_id, run.correlation_id, run.updated_at) == mark)
            raise

    async def begin(self, number: int) -> Run | None:
        """Begin a run that waits; None if another process was faster, or it has ended."""
        change = Begin(number, self.now())
        try:
            return await self.runs.change(change)
        except LeaseLost:
            return None
        except StorageUncertain:
            await self._let_go(lambda run: (run.number, run.updated_at) == (number, change.at))
            raise

    async def _let_go(self, is_it: Callable[[Run], bool]) -> None:
        """Give back a run that was begun after all, and that nobody runs: its caller was told that this is unknown."""
        query = RunQuery(statuses=(EntryStatus.RUNNING,), tasks_only=False, limit=10_000)
        with suppress(StorageError):
            for run in filter(is_it, await self.runs.page(query)):
                await self.runs.change(Released(run.number, run.fence, self.now()))
                self.tell_others()

    async def change_at_last(self, change: RunChange) -> Run | None:
        """Store what has happened, as soon as that is possible.

        None if it never will be: the run belongs to another by now, or the storage is lost.
        """
        while True:
            try:
                run = await self.runs.change(change)
            except (LeaseLost, StorageClosed):
                self._logger.warn("a run belongs to another process by now", {"number": change.number})
                return None
            except StorageError as error:
                if self.is_stopping:
                    return None
                self._logger.warn("a run cannot be stored", exception_facts(error, ErrorCode.INTERNAL))
                if isinstance(error, StorageLost):
                    self._lose()
                    return None
                await sleep(self.clock, _AGAIN_SECONDS)
            else:
                self.tell_others()
                return run

    async def check(self) -> None:
        """Raise `StorageLost` if nothing that is under way can be stored before a restart."""
        if self._is_lost:
            raise StorageLost("the storage is lost until the server is restarted")

    def _lose(self) -> None:
        self._is_lost = True
        self.wake()

    async def sweep(self) -> int:
        """Give up the runs whose process has ended; how many."""
        return await self.runs.sweep(self.now(), _UNKNOWN)

    async def close(self) -> None:
        """Give up the runs of this process."""
        if self.is_open:
            await self.runs.close(self.now(), _UNKNOWN)

    def wake(self) -> None:
        """End `changes`."""
        if self._changes is not None and not self._changes.done():
            self._changes.set_result(None)

    def _tell_now(self) -> None:
        self._telling = None
        self._publish(LedgerChanged())


async def stored_now(awaited: Awaitable[T]) -> T:
    """What the store answers; raises `ResourceExhausted` if it cannot be used now.

    Raises `InternalFailure` if it is unknown whether something was stored.
    """
    try:
        return await awaited
    except StorageUncertain as error:
        raise tool_error(error) from error
    except StorageError as error:
        facts = {"reason": "storage_failed", "retryable": True}
        raise ResourceExhausted("The call cannot be stored now", facts) from error
