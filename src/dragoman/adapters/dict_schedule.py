"""The `Schedule` and `Registry` of a process that keeps nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from dragoman.jobs.port import GONE_SECONDS, MOST_RUNS, JobRun, RegistryEntry


class DictSchedule:
    """Implements `Schedule`. No other process can lead."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], JobRun] = {}

    async def lead(self, job: str) -> bool:
        return True

    async def note(self, run: JobRun) -> None:
        self._runs[run.job, run.process] = run
        gone = [each for each in self._runs.values() if each.next_due_at < run.started_at - GONE_SECONDS]
        gone += [each for each in await self.runs() if each.job == run.job][MOST_RUNS:]
        for each in gone:
            self._runs.pop((each.job, each.process), None)

    async def runs(self) -> list[JobRun]:
        return sorted(self._runs.values(), key=lambda run: (run.job, -run.started_at, run.process))


class DictRegistry:
    """Implements `Registry`."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str, str, str], RegistryEntry] = {}

    async def beat(self, entries: Iterable[RegistryEntry]) -> None:
        for entry in entries:
            known = self._entries.get(_key(entry))
            self._entries[_key(entry)] = replace(entry, revision=1 if known is None else known.revision + 1)

    async def entries(self, tenants: Collection[str | None] | None = None) -> list[RegistryEntry]:
        found = (self._entries[key] for key in sorted(self._entries))
        return [each for each in found if tenants is None or each.tenant in tenants]

    async def remove(self, entry: RegistryEntry) -> bool:
        return self._entries.pop(_key(entry), None) is not None

    async def forget(self, before: float, limit: int) -> int:
        old = sorted(
            (each for each in self._entries.values() if each.last_seen_at < before), key=lambda each: each.last_seen_at
        )
        for entry in old[:limit]:
            del self._entries[_key(entry)]
        return len(old[:limit])


def _key(entry: RegistryEntry) -> tuple[str, str, str, str]:
    return entry.space, entry.tenant or "", entry.kind, entry.name
