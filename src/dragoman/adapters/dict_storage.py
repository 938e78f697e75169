"""The storage of a process that keeps nothing: dictionaries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.clock import Clock
from dragoman.findings import Finding
from dragoman.storage.migrations import Migration
from dragoman.storage.settings import StorageConfig

if TYPE_CHECKING:
    from dragoman.adapters.dict_bus import DictBus

P = TypeVar("P")


class DictStorage:
    """Implements `Storage`. There is nothing to migrate and nothing to check."""

    def __init__(self, config: StorageConfig, clock: Clock, migrations: Iterable[Migration] = ()) -> None:
        self._config = config
        self._clock = clock
        self._ports: dict[type, Any] = {}
        self._bus: DictBus | None = None

    def port(self, kind: type[P]) -> P:
        if not self._ports:
            self._ports = self._make_ports()
        port: P = self._ports[kind]
        return port

    def _make_ports(self) -> dict[type, Any]:
        # Most servers keep nothing, and load nothing of this.
        from dragoman.adapters.dict_aacp import DictAACPRecords
        from dragoman.adapters.dict_bus import DictBus, DictDeadLetters
        from dragoman.adapters.dict_documents import DictAudit, DictDocuments
        from dragoman.adapters.dict_gateway import DictQuotas, DictSigningKeys
        from dragoman.adapters.dict_ledger import DictBooks, DictLedger, DictLedgerAdmin
        from dragoman.adapters.dict_levels import DictServiceLevels
        from dragoman.adapters.dict_memories import DictMemories
        from dragoman.adapters.dict_objects import DictLinkKeys, DictObjectRecords, DictObjects
        from dragoman.adapters.dict_passages import DictPassages
        from dragoman.adapters.dict_requests import DictActionRequests
        from dragoman.adapters.dict_runs import DictRuns
        from dragoman.adapters.dict_schedule import DictRegistry, DictSchedule
        from dragoman.agents.aacp.records import AACPRecords
        from dragoman.agents.ledger import Ledger, LedgerAdmin
        from dragoman.gateway.objects import LinkKeys, ObjectExpiry, ObjectRecords, ObjectStore
        from dragoman.gateway.port import Quotas, SigningKeys
        from dragoman.gateway.requests import ActionRequests
        from dragoman.jobs.port import Registry, Schedule
        from dragoman.knowledge.index import PassageIndex, PassageVectors
        from dragoman.knowledge.port import Audit, Documents
        from dragoman.memories.port import Memories
        from dragoman.messaging.bus import Bus, DeadLetters
        from dragoman.slo.port import ServiceLevels
        from dragoman.tasks.port import Runs

        self._bus = bus = DictBus(self._clock)
        books, audit = DictBooks(), DictAudit(bus)
        dead, keys = DictDeadLetters(bus), DictSigningKeys(audit)
        artifacts, documents = DictObjectRecords(), DictDocuments(self._clock, audit)
        passages = DictPassages(documents, self._clock)
        return {
            Memories: DictMemories(self._config.max_bytes_per_caller, self._clock),
            Ledger: DictLedger(books),
            LedgerAdmin: DictLedgerAdmin(books),
            Runs: DictRuns(books),
            Documents: documents,
            PassageIndex: passages,
            PassageVectors: passages,
            Audit: audit,
            SigningKeys: keys,
            ActionRequests: DictActionRequests(bus, dead, keys, audit, self._clock),
            Quotas: DictQuotas(),
            Bus: bus,
            DeadLetters: dead,
            AACPRecords: DictAACPRecords(self._clock),
            Schedule: DictSchedule(),
            Registry: DictRegistry(),
            ObjectStore: DictObjects(),
            ObjectRecords: artifacts,
            ObjectExpiry: artifacts,
            LinkKeys: DictLinkKeys(),
            ServiceLevels: DictServiceLevels(),
        }

    def examine(self) -> Iterable[Finding]:
        return (Finding("storage", "ok", "in memory: nothing outlives the process"),)

    async def close(self) -> None:
        if self._bus is not None:
            self._bus.close()
