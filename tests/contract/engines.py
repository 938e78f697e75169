"""How the contract suites make a storage of each engine. A new engine is one more entry in `ENGINES`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from dragoman.adapters.private_storage import PrivateStorage
from dragoman.adapters.sqlite_storage import SqliteStorage
from dragoman.agents.ledger import Ledger, LedgerAdmin
from dragoman.agents.migrations import MIGRATIONS as AGENTS
from dragoman.clock import Clock
from dragoman.gateway.delivery_migrations import MIGRATIONS as DELIVERIES
from dragoman.gateway.migrations import MIGRATIONS as GATEWAY
from dragoman.jobs.migrations import MIGRATIONS as JOBS
from dragoman.knowledge.migrations import MIGRATIONS as KNOWLEDGE
from dragoman.memories.migrations import MIGRATIONS as MEMORIES
from dragoman.memories.port import Memories
from dragoman.messaging.migrations import MIGRATIONS as BUS
from dragoman.slo.migrations import MIGRATIONS as SLO
from dragoman.storage.port import Storage
from dragoman.storage.settings import StorageConfig
from dragoman.tasks.port import Runs
from dragoman.testing import ManualClock

PLENTY = 10**9
MakeStorage = Callable[[Path, int, Clock], Storage]
"""Makes a storage from a folder that it may use, the bytes that each owner may keep, and a clock."""


MIGRATIONS = (*MEMORIES, *AGENTS, *KNOWLEDGE, *GATEWAY, *DELIVERIES, *BUS, *JOBS, *SLO)


def sqlite(folder: Path, quota: int = PLENTY, clock: Clock | None = None) -> Storage:
    config = StorageConfig(data_dir=str(folder), max_bytes_per_caller=quota)
    return SqliteStorage(config, clock or ManualClock(), MIGRATIONS)


def memory(folder: Path, quota: int = PLENTY, clock: Clock | None = None) -> Storage:
    return PrivateStorage(StorageConfig(max_bytes_per_caller=quota), clock or ManualClock(), MIGRATIONS)


ENGINES: dict[str, MakeStorage] = {"sqlite": sqlite}
"""Several storages of an engine can have the same folder, as several processes do."""
SITES = [(engine, count) for engine in ENGINES for count in (1, 2)]
"""Engines, and how many storages have the same folder."""
STORAGES: dict[str, MakeStorage] = {**ENGINES, "memory": memory}
"""By the setting `storage.engine`. That in memory is SQLite as well: it differs where it is opened and closed."""


@asynccontextmanager
async def opened(engine: str, folder: Path, quota: int = PLENTY, clock: Clock | None = None) -> AsyncIterator[Memories]:
    """The memories of a new storage."""
    storage = STORAGES[engine](folder, quota, clock or ManualClock())
    try:
        yield storage.port(Memories)
    finally:
        await storage.close()


@asynccontextmanager
async def opened_ledger(engine: str, folder: Path) -> AsyncIterator[tuple[Ledger, LedgerAdmin]]:
    """The ledger of a new storage, and what operators do with it."""
    storage = STORAGES[engine](folder, PLENTY, ManualClock())
    ledger = storage.port(Ledger)
    try:
        yield ledger, storage.port(LedgerAdmin)
    finally:
        await ledger.close()
        await storage.close()


@asynccontextmanager
async def opened_runs(engine: str, folder: Path) -> AsyncIterator[tuple[Runs, LedgerAdmin]]:
    """The runs of a new storage, and what operators do with its ledger."""
    storage = STORAGES[engine](folder, PLENTY, ManualClock())
    runs = storage.port(Runs)
    try:
        yield runs, storage.port(LedgerAdmin)
    finally:
        await runs.close(0.0, b"{}")
        await storage.close()


@asynccontextmanager
async def opened_storages(
    engine: str, folder: Path, clock: Clock | None = None, count: int = 1
) -> AsyncIterator[list[Storage]]:
    """Storages with one folder."""
    shared = clock or ManualClock()
    storages = [STORAGES[engine](folder, PLENTY, shared) for _ in range(count)]
    try:
        yield storages
    finally:
        for storage in storages:
            await storage.close()
