"""The part of the knowledge service: its loop goes on through faults of the storage."""

from __future__ import annotations

import asyncio

from dragoman.adapters.dict_documents import DictAudit, DictDocuments
from dragoman.errors import StorageFailed
from dragoman.knowledge.part import keep_tidying
from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.testing import ManualClock
from tests.support.waiting import until


class Faulty(DictDocuments):
    """Documents of a storage that fails at first."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock, DictAudit())
        self.tried = 0

    async def tidy(self, limit: int) -> int:
        self.tried += 1
        if self.tried < 10:
            raise StorageFailed("no disk")
        return await super().tidy(limit)


async def test_tidying_goes_on_when_the_storage_has_failed_for_a_while() -> None:
    clock, entries = ManualClock(), list[Entry]()
    documents = Faulty(clock)
    tidying = asyncio.ensure_future(keep_tidying(documents, clock, StructuredLogger(entries.append, clock)))
    for number in range(1, 12):
        await until(lambda wanted=number: documents.tried >= wanted)  # type: ignore[misc]
        await asyncio.sleep(0)
        clock.advance(60)
    assert (tidying.done(), len(entries)) == (False, 9)
    tidying.cancel()
