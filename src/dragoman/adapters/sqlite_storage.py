"""The storage of a database in the data directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.clock import Clock
from dragoman.errors import ConfigError
from dragoman.findings import Finding
from dragoman.memories.port import Memories
from dragoman.storage.migrations import Migration, migrations_for
from dragoman.storage.port import PurgeClock
from dragoman.storage.settings import DEFAULT_SPACE, StorageConfig, data_directory
from dragoman.storage.tables import MIGRATIONS

if TYPE_CHECKING:
    from dragoman.adapters.sqlite_bus import SqliteBus
    from dragoman.adapters.sqlite_database import SqliteDatabase
    from dragoman.adapters.sqlite_schedule import SqliteSchedule

P = TypeVar("P")

_LITTLE_SPACE = 100 * 1024 * 1024
_ADVICE = "Set storage.data_dir to a folder that can be written."


class SqliteStorage:
    """Implements `Storage`. Other processes may use the same directory."""

    is_shared = True

    def __init__(self, config: StorageConfig, clock: Clock, migrations: Iterable[Migration]) -> None:
        self._config = config
        self._clock = clock
        self._migrations = migrations_for("sqlite", (*MIGRATIONS, *migrations))
        self._database: SqliteDatabase | None = None
        self._bus: SqliteBus | None = None
        self._schedule: SqliteSchedule | None = None
        self._ports: dict[type, Any] = {}
        self.tell_trouble: Callable[[str], None] = lambda reason: None

    def port(self, kind: type[P]) -> P:
        if kind not in self._ports:
            # Most servers keep memories or nothing, and load nothing of what the other ports need.
            self._ports |= self._memories() if kind is Memories else self._make_ports()
        port: P = self._ports[kind]
        return port

    def _opened(self) -> SqliteDatabase:
        if self._database is None:
            self._database = self._make_database()
        return self._database

    def _make_database(self) -> SqliteDatabase:
        return self._database_in(data_directory(self._config, os.environ))

    def _database_in(self, folder: Path, make_private: Callable[[], None] | None = None) -> SqliteDatabase:
        from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
        from dragoman.adapters.sqlite_tidying import merge_memories, merge_passages

        tidying = merge_memories, merge_passages
        made = SqliteDatabase(folder / FILE_NAME, self._migrations, tidying=tidying, make_private=make_private)
        made.trouble.tell = lambda reason: self.tell_trouble(reason)
        return made

    def _memories(self) -> dict[type, Any]:
        from dragoman.adapters.sqlite_memories import SqliteMemories

        return {Memories: SqliteMemories(self._opened(), self._config.max_bytes_per_caller, self._clock)}

    def _make_ports(self) -> dict[type, Any]:
        from dragoman.adapters.file_objects import FileObjects
        from dragoman.adapters.sqlite_aacp import SqliteAACPRecords
        from dragoman.adapters.sqlite_bus import SqliteBus
        from dragoman.adapters.sqlite_dead_letters import SqliteDeadLetters
        from dragoman.adapters.sqlite_documents import SqliteAudit
        from dragoman.adapters.sqlite_gateway import SqliteQuotas, SqliteSigningKeys
        from dragoman.adapters.sqlite_ledger import SqliteLedger
        from dragoman.adapters.sqlite_ledger_admin import SqliteLedgerAdmin
        from dragoman.adapters.sqlite_ledger_process import SqliteProcess
        from dragoman.adapters.sqlite_levels import SqliteServiceLevels
        from dragoman.adapters.sqlite_objects import SqliteLinkKeys, SqliteObjectRecords
        from dragoman.adapters.sqlite_purge_clock import SqlitePurgeClock
        from dragoman.adapters.sqlite_requests import SqliteActionRequests
        from dragoman.adapters.sqlite_runs import SqliteRuns
        from dragoman.adapters.sqlite_schedule import SqliteRegistry, SqliteSchedule
        from dragoman.agents.aacp.records import AACPRecords
        from dragoman.agents.ledger import Ledger, LedgerAdmin
        from dragoman.gateway.objects import LinkKeys, ObjectExpiry, ObjectRecords, ObjectStore
        from dragoman.gateway.port import Quotas, SigningKeys
        from dragoman.gateway.requests import ActionRequests
        from dragoman.jobs.port import Registry, Schedule
        from dragoman.knowledge.port import Audit
        from dragoman.messaging.bus import Bus, DeadLetters
        from dragoman.slo.port import ServiceLevels
        from dragoman.tasks.port import Runs

        space = self._config.space or DEFAULT_SPACE
        database = self._opened()
        process = SqliteProcess(database)
        self._schedule = SqliteSchedule(database)
        self._bus = bus = SqliteBus(database, process, self._clock)
        purge_clock = SqlitePurgeClock(database, self._clock, self._clock.boot)
        dead, keys = SqliteDeadLetters(database, self._clock, bus.wake_in), SqliteSigningKeys(database, purge_clock)
        artifacts = SqliteObjectRecords(database)
        return {
            Ledger: SqliteLedger(database, space, process),
            LedgerAdmin: SqliteLedgerAdmin(database, space),
            Runs: SqliteRuns(database, space, process),
            **self._document_ports(database),
            Audit: SqliteAudit(database, bus),
            SigningKeys: keys,
            ActionRequests: SqliteActionRequests(database, bus, dead, keys, self._clock),
            Quotas: SqliteQuotas(database),
            Bus: bus,
            DeadLetters: dead,
            AACPRecords: SqliteAACPRecords(database, space, self._clock),
            Schedule: self._schedule,
            Registry: SqliteRegistry(database),
            ObjectStore: FileObjects(database.path.with_name("artifacts")),
            ObjectRecords: artifacts,
            ObjectExpiry: artifacts,
            LinkKeys: SqliteLinkKeys(database),
            ServiceLevels: SqliteServiceLevels(database),
            PurgeClock: purge_clock,
        }

    def _document_ports(self, database: SqliteDatabase) -> dict[type, Any]:
        from dragoman.adapters.sqlite_documents import SqliteDocuments
        from dragoman.adapters.sqlite_passages import SqlitePassages
        from dragoman.knowledge.index import PassageIndex, PassageVectors
        from dragoman.knowledge.port import Documents

        documents = SqliteDocuments(database, self._clock)
        passages = SqlitePassages(database, documents, self._clock, self._config.vector_cache_bytes)
        return {Documents: documents, PassageIndex: passages, PassageVectors: passages}

    def trouble(self) -> str | None:
        return None if self._database is None else self._database.trouble.look()

    def note_damage(self) -> None:
        self._opened().trouble.note_damage()

    def examine(self) -> Iterator[Finding]:
        yield _examine_folder(self._config)
        yield examine_library()

    async def close(self) -> None:
        try:
            if self._bus is not None:
                await self._bus.close()
        finally:
            await self._close_database()

    async def _close_database(self) -> None:
        try:
            if self._database is not None:
                await self._database.close()
        finally:
            if self._schedule is not None:
                self._schedule.close()


def _examine_folder(config: StorageConfig) -> Finding:
    try:
        folder = data_directory(config, os.environ)
        there = next(place for place in (folder, *folder.absolute().parents) if _is_there(place))
    except ConfigError as error:
        ((_, said),) = error.problems
        return Finding("storage", "problem", said, _ADVICE)
    except (OSError, ValueError) as error:
        said = f"{folder!s:.200}: {getattr(error, 'strerror', None) or error}"
        return Finding("storage", "problem", said, _ADVICE)
    return room_in(folder, there, _ADVICE)


def _is_there(path: Path) -> bool:
    """Raises `OSError` or `ValueError` where nobody can say."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def room_in(folder: Path, there: Path, advice: str) -> Finding:
    """Whether something can be kept in a folder of which `there` exists."""
    import shutil  # It loads five compression modules, and only doctor asks.

    if not there.is_dir():
        return Finding("storage", "problem", f"{there} is not a folder", advice)
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding("storage", "problem", f"{there} cannot be written", advice)
    free = shutil.disk_usage(there).free
    if free < _LITTLE_SPACE:
        said = f"{folder}: {free >> 20} MiB are free"
        return Finding("storage", "warning", said, "Make room, or choose another folder.")
    state = "" if there == folder else ", created when first needed"
    return Finding("storage", "ok", f"{folder}{state}; {free >> 30} GiB are free")


def examine_library() -> Finding:
    """Whether this Python has SQLite, and whether that can search text."""
    from dragoman.adapters.sqlite_database import describe_library

    try:
        return Finding("SQLite", "ok", describe_library())
    except Exception as error:  # No module, or a library that lacks something.
        return Finding("SQLite", "problem", str(error), "Use a Python whose SQLite is newer, such as python.org's.")
