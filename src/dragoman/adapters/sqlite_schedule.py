"""The `Schedule` and `Registry` of a database that several processes may share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from dragoman.adapters.leader_locks import LeaderLocks
from dragoman.adapters.sqlite_database import SqliteDatabase
from dragoman.jobs.port import GONE_SECONDS, MOST_RUNS, JobRun, RegistryEntry

if TYPE_CHECKING:
    import sqlite3

    from dragoman.adapters.sqlite_writer import Transaction

_NOTE = (
    "INSERT OR REPLACE INTO job_run "
    "(job, process, started_at, duration_ms, outcome, error, error_type, facts, next_due_at) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_FORGET_GONE = "DELETE FROM job_run WHERE next_due_at < ?"
_FORGET_MANY = (
    "DELETE FROM job_run WHERE job = ? AND process NOT IN "
    "(SELECT process FROM job_run WHERE job = ? ORDER BY started_at DESC, process LIMIT ?)"
)
_RUNS = (
    "SELECT job, process, started_at, duration_ms, outcome, error, error_type, facts, next_due_at FROM job_run "
    "ORDER BY job, started_at DESC, process"
)
_BEAT = (
    "INSERT INTO registry_entry (space, tenant, kind, name, status, last_seen_at, revision, details) "
    "VALUES (?, ?, ?, ?, ?, ?, 1, ?) ON CONFLICT (space, tenant, kind, name) DO UPDATE SET "
    "status = excluded.status, last_seen_at = excluded.last_seen_at, revision = revision + 1, "
    "details = excluded.details"
)
_ENTRIES = "SELECT space, tenant, kind, name, status, last_seen_at, revision, details FROM registry_entry"
_REMOVE = "DELETE FROM registry_entry WHERE space = ? AND tenant = ? AND kind = ? AND name = ?"
_FORGET = (
    "DELETE FROM registry_entry WHERE (space, tenant, kind, name) IN (SELECT space, tenant, kind, name "
    "FROM registry_entry WHERE last_seen_at < ? ORDER BY last_seen_at LIMIT ?)"
)
_encode = msgspec.json.encode
_decode = msgspec.json.decode


class SqliteSchedule:
    """Implements `Schedule`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._locks = LeaderLocks(database.path.parent / "locks")

    async def lead(self, job: str) -> bool:
        # On a thread of the database: a disk can be slow, and its errors are worded there.
        return self._locks.has(job) or await self._database.read(lambda _: self._locks.take(job))

    async def note(self, run: JobRun) -> None:
        await self._database.write(partial(_note, run))

    async def runs(self) -> list[JobRun]:
        return await self._database.read(_runs)

    def close(self) -> None:
        """Let other processes lead. Called when the database is closed."""
        self._locks.give_back()


class SqliteRegistry:
    """Implements `Registry`. No tenant is the empty text: NULL would be unique each time."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def beat(self, entries: Iterable[RegistryEntry]) -> None:
        await self._database.write(partial(_beat, tuple(entries)))

    async def entries(self, tenants: Collection[str | None] | None = None) -> list[RegistryEntry]:
        return await self._database.read(partial(_entries, tenants))

    async def remove(self, entry: RegistryEntry) -> bool:
        return await self._database.write(lambda writing: writing.execute(_REMOVE, _key(entry)).rowcount == 1)

    async def forget(self, before: float, limit: int) -> int:
        return await self._database.write(lambda writing: writing.execute(_FORGET, (before, limit)).rowcount)


def _note(run: JobRun, writing: Transaction) -> None:
    values = run.job, run.process, run.started_at, run.duration_ms, run.outcome, run.error, run.error_type
    writing.execute(_NOTE, (*values, _encode(run.facts), run.next_due_at))
    writing.execute(_FORGET_GONE, (run.started_at - GONE_SECONDS,))
    writing.execute(_FORGET_MANY, (run.job, run.job, MOST_RUNS))


def _runs(connection: sqlite3.Connection) -> list[JobRun]:
    return [
        JobRun(
            job=job,
            process=process,
            started_at=started_at,
            duration_ms=duration_ms,
            outcome=outcome,
            error=error,
            error_type=error_type,
            facts=_decode(facts),
            next_due_at=next_due_at,
        )
        for job, process, started_at, duration_ms, outcome, error, error_type, facts, next_due_at in connection.execute(
            _RUNS
        )
    ]


def _beat(entries: tuple[RegistryEntry, ...], writing: Transaction) -> None:
    for entry in entries:
        writing.execute(_BEAT, (*_key(entry), entry.status, entry.last_seen_at, _encode(entry.details)))


def _entries(tenants: Collection[str | None] | None, connection: sqlite3.Connection) -> list[RegistryEntry]:
    statement, values = _ENTRIES, [each or "" for each in tenants or ()]
    if tenants is not None:
        statement += f" WHERE tenant IN ({', '.join('?' * len(values))})"
    rows = connection.execute(f"{statement} ORDER BY space, tenant, kind, name", values)
    return [
        RegistryEntry(
            space=space,
            tenant=tenant or None,
            kind=kind,
            name=name,
            status=status,
            last_seen_at=last_seen_at,
            revision=revision,
            details=_decode(details),
        )
        for space, tenant, kind, name, status, last_seen_at, revision, details in rows
    ]


def _key(entry: RegistryEntry) -> tuple[str, str, str, str]:
    return entry.space, entry.tenant or "", entry.kind, entry.name
