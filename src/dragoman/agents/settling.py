"""Stores what an agent did, in order, through a storage that may fail for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from dragoman.agents.ledger import Hold, Ledger, LedgerEntry, Settlement
from dragoman.clock import Clock, sleep
from dragoman.errors import (
    ErrorCode,
    InternalFailure,
    LeaseLost,
    StorageClosed,
    StorageError,
    StorageLost,
    StorageUncertain,
    ToolError,
)
from dragoman.telemetry.log import Logger, exception_facts
from dragoman.tools.storage_errors import tool_error

_FIRST_DELAY, _LONGEST_DELAY = 0.05, 2.0
"""Seconds between attempts to store."""


class SettlingHost(Protocol):
    """The facilities that settlements need."""

    ledger: Ledger
    clock: Clock
    logger: Logger
    is_stopping: bool


class Settling:
    """The settlements of one agent while this process holds it. Each builds on the one before.

    A settlement that cannot be stored is tried again until it works, the agent has another holder, the storage
    is lost, or the server stops.
    """

    def __init__(self, host: SettlingHost, hold: Hold) -> None:
        self.version = hold.version
        """The version that the next settlement expects."""
        self._host = host
        self._hold = hold
        self._last: asyncio.Future[bool] | None = None
        """Of the last settlement that was begun: whether it is stored, and the agent still held."""

    @property
    def is_busy(self) -> bool:
        """Whether a settlement is not stored yet."""
        return self._last is not None and not self._last.done()

    def settle(self, settlement: Settlement) -> Awaitable[list[LedgerEntry]]:
        """Store a settlement; returns what it sends. They are queued in the order of these calls.

        Raises `LeaseLost` when it is awaited; `StorageUncertain` if it may have been stored before that.
        """
        self.version += 1
        first: Awaitable[list[LedgerEntry]] | StorageError
        try:
            first = self._host.ledger.settle(settlement)
        except StorageError as error:
            first = error
        before, self._last = self._last, asyncio.get_running_loop().create_future()
        return self._store(settlement, first, before, self._last)

    async def begin(self, entry: LedgerEntry) -> None:
        """Note that the handling of a message begins; raises `LeaseLost`."""
        delay = _FIRST_DELAY
        while True:
            try:
                await self._host.ledger.begin(entry.number, self._hold.agent, self._hold.epoch)
                return
            except LeaseLost:
                raise
            except StorageError as error:
                await self._wait(error, delay)
                delay = min(2 * delay, _LONGEST_DELAY)

    async def wait(self) -> None:
        """Wait until everything that was settled by now is stored; raises `LeaseLost` if it will not be."""
        if self._last is not None and not await asyncio.shield(self._last):
            raise LeaseLost(self._hold.agent)

    async def _store(
        self,
        settlement: Settlement,
        first: Awaitable[list[LedgerEntry]] | StorageError,
        before: asyncio.Future[bool] | None,
        settling: asyncio.Future[bool],
    ) -> list[LedgerEntry]:
        is_stored = False
        try:
            if isinstance(first, StorageError):
                raise first
            sent = await first
            is_stored = True
        except StorageError as error:
            sent = await self._store_again(settlement, error, before)
            is_stored = True
        finally:
            settling.set_result(is_stored)
        return sent

    async def _store_again(
        self, settlement: Settlement, error: StorageError, before: asyncio.Future[bool] | None
    ) -> list[LedgerEntry]:
        delay = _FIRST_DELAY
        uncertain: StorageUncertain | None = None
        while True:
            if isinstance(error, StorageUncertain):
                uncertain = error
            try:
                if before is not None:  # It may have failed only because the one before it had.
                    if not await asyncio.shield(before):
                        raise LeaseLost(self._hold.agent)
                    before = None
                elif isinstance(error, LeaseLost):
                    raise error
                else:
                    await self._wait(error, delay)
                    delay = min(2 * delay, _LONGEST_DELAY)
            except LeaseLost as lost:
                # Its version was counted before: by another holder, or by this settlement, which was stored then.
                raise uncertain or lost from None
            try:
                return await self._host.ledger.settle(settlement)
            except StorageError as failure:
                error = failure

    async def _wait(self, error: StorageError, delay: float) -> None:
        """Wait before the next attempt to store something; raises `LeaseLost` if there will be none."""
        agent = self._hold.agent
        if isinstance(error, StorageClosed | StorageLost) or self._host.is_stopping:
            raise LeaseLost(agent)
        facts = {"agentId": agent, "retryMs": int(delay * 1000), **exception_facts(error, ErrorCode.INTERNAL)}
        self._host.logger.warn("what an agent did could not be stored yet", facts)
        await sleep(self._host.clock, delay)


def taken_over(error: StorageError) -> ToolError:
    """The error of a handling whose agent has another holder by now: nothing of it was stored, if that is known."""
    if isinstance(error, StorageUncertain):
        return tool_error(error)
    return InternalFailure("The agent was taken over by another process", {"reason": "lease_lost"})
