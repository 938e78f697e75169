"""When a server looks often for what others do to runs, and what it asks of the store while it is idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman import ToolContext, tool
from dragoman.access.callers import LOCAL
from dragoman.agents.ledger import LedgerAdmin
from dragoman.storage.port import Storage
from dragoman.tasks.port import Runs
from dragoman.testing import ManualClock, TestServer, open_server
from tests.contract.engines import opened_storages
from tests.support.agents import quiet
from tests.support.keyed_calls import Effect, begin_keyed, is_repeat
from tests.support.shared_ports import SharedPort
from tests.support.waiting import PATIENCE, until


class Site:
    """Servers on one store, and their clock."""

    def __init__(self, storage: Storage) -> None:
        self.clock = ManualClock()
        self.runs, self.admin = SharedPort(storage.port(Runs)), storage.port(LedgerAdmin)

    @asynccontextmanager
    async def serve(self, *tools: Any) -> AsyncIterator[TestServer]:
        runs = (self.runs, self.admin)
        async with asyncio.timeout(PATIENCE), open_server(tools, runs=runs, clock=self.clock) as server:
            yield server

    async def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            await quiet()
            await self.admin.purge(0.0, 1)  # Behind all writes so far.
            await self.admin.figures()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with opened_storages("memory", tmp_path) as (storage,):
        yield Site(storage)


async def test_a_repeat_that_waits_for_another_process_looks_often(site: Site) -> None:
    pay = Effect()
    pay.gate.clear()
    async with site.serve(pay.tool) as one, site.serve(pay.tool) as two:
        first, second = await one.client(), await two.client()
        begun = begin_keyed(first)
        await pay.begun.wait()
        assert not site.runs.eager
        repeat = begin_keyed(second)
        await until(lambda: len(site.runs.eager) == 1)
        pay.gate.set()
        await first.answer(begun)
        site.runs.tell_changed()
        assert is_repeat((await second.answer(repeat))["result"])
        assert not site.runs.eager


async def test_a_task_that_runs_looks_often_for_answers_and_cancellations(site: Site) -> None:
    may_end = asyncio.Event()

    @tool(task="optional")
    async def wait(ctx: ToolContext) -> None:
        await may_end.wait()

    async with site.serve(wait) as server:
        task_id = await server.runtime.create_task("wait")
        assert len(site.runs.eager) == 1
        told: list[Any] = []
        _, end = await server.runtime.tasks.feed.listen(LOCAL, [task_id], told.append)
        assert len(site.runs.eager) == 2
        end()
        await server.runtime.tasks.feed.listen(LOCAL, [task_id], told.append)
        assert len(site.runs.eager) == 2
        may_end.set()
        await until(lambda: not site.runs.eager)
        assert told[-1]["status"] == "completed"  # Whoever listens for what has ended waits for nobody.


async def test_an_idle_server_asks_the_store_for_nothing_until_another_process_ends(site: Site) -> None:
    @tool(task="optional")
    async def quick() -> None:
        """Done at once."""

    async with site.serve(quick) as server:
        await server.runtime.create_task("quick")
        await until(lambda: not site.runs.eager)
        await site.pass_time(5)
        before = site.runs.asked["sweep"], site.runs.asked["page"]
        await site.pass_time(60)
        assert (site.runs.asked["sweep"], site.runs.asked["page"]) == before
        site.runs.tell_lost()
        await until(lambda: site.runs.asked["sweep"] == before[0] + 1)
