"""The storage of a process that keeps nothing: dictionaries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from dragoman.clock import Clock
from dragoman.findings import Finding
from dragoman.storage.migrations import Migration
from dragoman.storage.settings import StorageConfig

P = TypeVar("P")


class DictStorage:
    """Implements `Storage`. There is nothing to migrate, to check or to close."""

    def __init__(self, config: StorageConfig, clock: Clock, migrations: Iterable[Migration] = ()) -> None:
        self._config = config
        self._clock = clock
        self._ports: dict[type, Any] = {}

    def port(self, kind: type[P]) -> P:
        if not self._ports:
            self._ports = self._make_ports()
        port: P = self._ports[kind]
        return port

    def _make_ports(self) -> dict[type, Any]:
        # Most servers keep nothing, and load nothing of this.
        from dragoman.adapters.dict_aacp import DictAACPRecords
        from dragoman.adapters.dict_documents import DictAudit, DictDocuments
        from dragoman.adapters.dict_gateway import DictQuotas, DictSigningKeys
        from dragoman.adapters.dict_ledger import DictBooks, DictLedger, DictLedgerAdmin
        from dragoman.adapters.dict_memories import DictMemories
        from dragoman.adapters.dict_runs import DictRuns
        from dragoman.agents.aacp.records import AACPRecords
        from dragoman.agents.ledger import Ledger, LedgerAdmin
        from dragoman.gateway.port import Quotas, SigningKeys
        from dragoman.knowledge.port import Audit, Documents
        from dragoman.memories.port import Memories
        from dragoman.tasks.port import Runs

        books, audit = DictBooks(), DictAudit()
        return {
            Memories: DictMemories(self._config.max_bytes_per_caller, self._clock),
            Ledger: DictLedger(books),
            LedgerAdmin: DictLedgerAdmin(books),
            Runs: DictRuns(books),
            Documents: DictDocuments(self._clock, audit),
            Audit: audit,
            SigningKeys: DictSigningKeys(audit),
            Quotas: DictQuotas(),
            AACPRecords: DictAACPRecords(self._clock),
        }

    def examine(self) -> Iterable[Finding]:
        return (Finding("storage", "ok", "in memory: nothing outlives the process"),)

    async def close(self) -> None:
        """Nothing is queued."""
