"""The part of the knowledge service: its job tidies up in steps until nothing is left."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from dragoman.adapters.engines import ENGINES
from dragoman.adapters.private_storage import PrivateStorage
from dragoman.app import ServerOptions, configure, create_server
from dragoman.errors import StorageFailed
from dragoman.knowledge.index import PassageIndex
from dragoman.knowledge.part import FollowUp, tidy
from dragoman.knowledge.port import ROOT, ActionRequest, Applied, Audit, DeleteDocument, Documents
from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.testing import ManualClock
from dragoman.tools.context import ToolContext
from tests.contract.engines import opened_storages
from tests.support.document_entries import Tree, asked
from tests.support.large_texts import large_text
from tests.support.purge_clock import PromptPurgeClock
from tests.support.waiting import PATIENCE


class Scripted:
    """Documents of a storage that has so much to tidy up at each step, or that fails."""

    def __init__(self, *steps: int | Exception) -> None:
        self.steps = list(steps)
        self.limits: list[int] = []
        self.times: set[float] = set()

    async def tidy(self, limit: int, until: float) -> int:
        self.limits.append(limit)
        self.times.add(until)
        step = self.steps.pop(0) if self.steps else 0
        if isinstance(step, Exception):
            raise step
        return step


async def test_documents_are_tidied_in_steps_until_nothing_is_left() -> None:
    documents, clock = Scripted(200, 7, 1, 0, 200), ManualClock()
    assert await tidy(cast(Documents, documents), PromptPurgeClock(clock)) == {"tidied": 208}
    assert (documents.limits, documents.steps) == ([200] * 4, [200])
    assert documents.times == {clock.now().timestamp()}


@pytest.mark.slow
async def test_what_a_change_leaves_is_done_soon_and_not_only_by_the_job(tmp_path: Path) -> None:
    async with opened_storages("sqlite", tmp_path) as (storage,):
        documents, passages, audit = (storage.port(port) for port in (Documents, PassageIndex, Audit))
        follow_up, tree = FollowUp(documents, passages, PromptPurgeClock(ManualClock())), Tree(documents)
        for id, parent in (("a", ROOT), ("b", "a"), ("c", "a")):
            await tree.create(id, parent, body=large_text("needle"))

        async def delete(_: object, request: ActionRequest, __: object) -> Applied:
            return await documents.carry_out(DeleteDocument(id="a"), request)

        loop = asyncio.create_task(follow_up.run())
        await follow_up.after(delete)({}, asked("delete"), cast(ToolContext, None))
        async with asyncio.timeout(PATIENCE):
            while (await audit.page(1))[0].event != "document.removed":
                pass
        loop.cancel()


async def test_tidying_goes_on_when_the_storage_has_failed_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = Scripted(*[StorageFailed("no disk")] * 9, 3)

    class ScriptedStorage(PrivateStorage):
        def _make_ports(self) -> dict[type, Any]:
            return {**super()._make_ports(), Documents: documents}

    monkeypatch.setitem(ENGINES, "memory", ScriptedStorage)
    clock, entries = ManualClock(), list[Entry]()
    config = configure({"gateway": {"enabled": True}, "storage": {"engine": "memory"}})
    runtime = create_server(ServerOptions(config=config, clock=clock, logger=StructuredLogger(entries.append, clock)))
    await runtime.start()
    async with asyncio.timeout(PATIENCE):
        while len(documents.limits) < 10:
            clock.advance(60)
            await asyncio.sleep(0)
    await runtime.stop(0.1)
    log = [each for each in entries if isinstance(each, dict) and each.get("job") == "knowledge.tidy"]
    assert [each["outcome"] for each in log] == [*["failed"] * 9, "completed"]
    assert (log[0]["level"], log[-1]["facts"]) == ("warn", {"tidied": 3})
