"""The ports to the runs of jobs, and to the registry of processes and agents.

All moments are in seconds since 1970. Every method raises `StorageError`s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final, Literal, Protocol, TypeAlias

from msgspec import Struct

from dragoman.storage.port import PurgeClock
from dragoman.storage.settings import DEFAULT_SPACE

GONE_SECONDS: Final = 3_600.0
"""A run is forgotten when the next one of its process is overdue by this."""
MOST_RUNS: Final = 100
"""The most processes of which the latest run of a job is kept."""

RunOutcome: TypeAlias = Literal["completed", "failed"]
Standing: TypeAlias = Literal["healthy", "degraded"]
RegistryKind: TypeAlias = Literal["process", "agent"]


class JobRun(Struct, frozen=True, kw_only=True):
    """One run of a job."""

    job: str
    process: str
    started_at: float
    duration_ms: float
    outcome: RunOutcome
    next_due_at: float
    error: str | None = None
    """The code of what the run failed with, as the log has it."""
    error_type: str | None = None
    facts: dict[str, Any] = {}
    """The facts that the job returned. They can be encoded as JSON."""


class Schedule(Protocol):
    """Remembers runs, and decides which process runs a job that only one may run."""

    async def lead(self, job: str) -> bool:
        """Whether this process runs the job: it has the lock, or takes it now. It keeps the lock until it closes."""
        ...

    async def note(self, run: JobRun) -> None:
        """Keep a run in place of the one before of the same job and process.

        Forgets runs of processes that have not run the job since long: see `GONE_SECONDS` and `MOST_RUNS`.
        """
        ...

    async def runs(self) -> list[JobRun]:
        """The latest run of each job in each process, by job, the newest first."""
        ...


class RegistryEntry(Struct, frozen=True, kw_only=True):
    """A process or an agent, as its last heartbeat described it. Unique by space, tenant, kind and name."""

    kind: RegistryKind
    name: str
    status: Standing
    last_seen_at: float
    space: str = DEFAULT_SPACE
    tenant: str | None = None
    """None: the server's own."""
    revision: int = 0
    """1 after the first heartbeat, and one more with each. The registry counts; the value in a heartbeat is ignored."""
    details: dict[str, Any] = {}


class Registry(Protocol):
    """Remembers which processes and agents there are, and when each was seen."""

    async def beat(self, entries: Iterable[RegistryEntry]) -> None:
        """Replace what is known of these, and count their revisions. All of them, or none."""
        ...

    async def entries(self, tenants: Collection[str | None] | None = None) -> list[RegistryEntry]:
        """All of them, or those of these tenants, by space, tenant (None first), kind and name."""
        ...

    async def remove(self, entry: RegistryEntry) -> bool:
        """Forget the entry of this space, tenant, kind and name; False if there is none."""
        ...

    async def forget(self, before: float, limit: int) -> int:
        """Forget up to `limit` entries that were last seen before then; returns how many."""
        ...


class JobStores(Struct, frozen=True):
    """The stores of one runtime."""

    schedule: Schedule
    registry: Registry
    purge_clock: PurgeClock
