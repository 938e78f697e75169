"""A ledger in a folder, with what a test puts into it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import NamedTuple, TypeVar

from dragoman.access.callers import LOCAL
from dragoman.adapters.engines import make_storage
from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.agents.drafts import Drafts
from dragoman.agents.ledger import EntryStatus, Hold, Ledger, LedgerAdmin, LedgerEntry, MessageKind, Settlement
from dragoman.agents.migrations import MIGRATIONS
from dragoman.clock import SystemClock
from dragoman.ids import RandomIds
from dragoman.memories.migrations import MIGRATIONS as MEMORIES
from dragoman.storage.settings import StorageConfig

T = TypeVar("T")
CLIENT = "client:tests"
DAY = 86_400_000


class KeptMessages(NamedTuple):
    """The ledger of a space, and short ways to fill it."""

    drafts: Drafts
    ledger: Ledger
    admin: LedgerAdmin

    async def hold(self, agent: str) -> Hold:
        hold = await self.ledger.hold(agent)
        assert hold is not None
        return hold

    async def accept(
        self, agent: str, payload: object = None, kind: MessageKind = "EVENT", source: str = CLIENT
    ) -> LedgerEntry:
        request_id = self.drafts.message_id() if kind == "REQUEST" else None
        made = self.drafts.make(kind, agent, payload, "test", source, LOCAL, None, request_id)
        return await self.ledger.accept(made)

    async def end(
        self, hold: Hold, version: int, entry: LedgerEntry, status: EntryStatus, error: bytes | None = None
    ) -> None:
        """Store the end of a handling; a request that is completed is answered with `"done"`."""
        is_answered = entry.kind == "REQUEST" and status is EntryStatus.COMPLETED
        sends = [self.drafts.response_to(entry, b'"done"')] if is_answered else []
        await self.ledger.settle(
            Settlement(
                agent=hold.agent,
                epoch=hold.epoch,
                version=version,
                at=self.drafts.now(),
                number=entry.number,
                status=status,
                error=error,
                attempts=1,
                sends=sends,
            )
        )


@asynccontextmanager
async def kept_messages(folder: Path, space: str, ttl_ms: int = DAY) -> AsyncIterator[KeptMessages]:
    """The ledger of a space in a folder."""
    clock = SystemClock()
    storage = make_storage(StorageConfig(data_dir=str(folder), space=space), clock, (*MEMORIES, *MIGRATIONS))
    drafts = Drafts(clock, RandomIds(), space, ttl_ms, 1_000_000)
    kept = KeptMessages(drafts, storage.port(Ledger), storage.port(LedgerAdmin))
    try:
        yield kept
    finally:
        await kept.ledger.close()
        await storage.close()


def fill(folder: Path, space: str, work: Callable[[KeptMessages], Awaitable[T]], ttl_ms: int = DAY) -> T:
    """What `work` returns, done with the ledger of a space."""

    async def run() -> T:
        async with kept_messages(folder, space, ttl_ms) as kept:
            return await work(kept)

    return asyncio.run(run())


def tamper(folder: Path, statement: str) -> None:
    """Change the database behind the ledger's back."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection, connection:
        connection.execute(statement)
