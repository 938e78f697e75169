"""The store of runs, when its storage fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dragoman.agents.ledger import LedgerAdmin
from dragoman.changes import Change, LedgerChanged
from dragoman.errors import (
    InternalFailure,
    LeaseLost,
    ResourceExhausted,
    StorageBusy,
    StorageClosed,
    StorageError,
    StorageFull,
    StorageLost,
    StorageUncertain,
)
from dragoman.ids import Ids, RandomIds
from dragoman.storage.port import Storage
from dragoman.tasks.port import NewRun, Note, Run, RunChange, Runs
from dragoman.tasks.store import RunStore, stored_now
from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.testing import ManualClock, SequentialIds
from tests.contract.engines import opened_storages
from tests.support.agents import quiet, raising
from tests.support.answers import error_in
from tests.support.keyed_calls import Effect, Kept, call, is_repeat
from tests.support.run_entries import ended, keyed, stored
from tests.support.waiting import PATIENCE, until


class FailingRuns:
    """Runs that raise what they are told to, in place of their next changes."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self.errors: list[StorageError] = []
        self.tries = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runs, name)

    def change(self, change: RunChange) -> Awaitable[Run]:
        self.tries += 1
        return raising(self.errors.pop(0)) if self.errors else self._runs.change(change)


class Uncertain:
    """Runs whose next write is stored, and nobody knows."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self.left = 1
        self.later: list[StorageError] = []
        """What the changes after it raise."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runs, name)

    async def add(self, new: NewRun) -> Run:
        return await self._tell(self._runs.add(new))

    async def change(self, change: RunChange) -> Run:
        if self.left <= 0 and self.later:
            raise self.later.pop()
        return await self._tell(self._runs.change(change))

    async def _tell(self, storing: Awaitable[Run]) -> Run:
        run = await storing
        self.left -= 1
        if self.left == 0:
            raise StorageUncertain("disk I/O error")
        return run


class Failing:
    """A store with such runs."""

    def __init__(self, storage: Storage, ids: Ids) -> None:
        self.runs = FailingRuns(storage.port(Runs))
        self.clock = ManualClock()
        self.log: list[Entry] = []
        self.published: list[Change] = []
        logger = StructuredLogger(self.log.append, self.clock)
        self.store = RunStore(
            lambda: (self.runs, storage.port(LedgerAdmin)),
            self.clock,
            ids,
            logger,
            self.published.append,
            10.0,
        )


@pytest.fixture
async def failing(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Failing]:
    async with opened_storages("memory", tmp_path) as (storage,):
        made = Failing(storage, getattr(request, "param", SequentialIds()))
        yield made
        await made.store.close()


async def test_nothing_is_opened_before_it_is_used(failing: Failing) -> None:
    store = failing.store
    await store.close()
    assert not store.is_open
    await store.runs.add(keyed())
    assert store.is_open


async def test_what_has_happened_is_stored_as_soon_as_that_is_possible(failing: Failing) -> None:
    run = await failing.store.runs.add(keyed())
    failing.runs.errors = [StorageFull("full"), StorageBusy("busy"), StorageFull("full")]
    storing = asyncio.create_task(failing.store.change_at_last(ended(run)))
    async with asyncio.timeout(PATIENCE):
        for tries in (1, 2, 3):
            await quiet()
            assert (failing.runs.tries, storing.done(), failing.published) == (tries, False, [])
            failing.clock.advance(0.2)
        after = await storing
    assert after is not None
    assert (after.status, (await stored(failing.runs, run)).result) == ("completed", b"1")
    failing.clock.advance(1.0)
    assert failing.published == [LedgerChanged()]


@pytest.mark.parametrize("error", [LeaseLost("run 1"), StorageClosed("closed"), StorageLost("gone")])
async def test_what_cannot_be_stored_any_more_is_given_up(failing: Failing, error: StorageError) -> None:
    run = await failing.store.runs.add(keyed())
    failing.runs.errors = [error]
    assert await failing.store.change_at_last(ended(run)) is None
    assert (failing.runs.tries, failing.published) == (1, [])


async def test_a_store_that_stops_does_not_wait_for_a_storage_that_fails(failing: Failing) -> None:
    run = await failing.store.runs.add(keyed())
    failing.store.is_stopping = True
    failing.runs.errors = [StorageFull("full")]
    assert await failing.store.change_at_last(ended(run)) is None


async def test_a_storage_that_is_full_refuses_a_call_that_may_be_repeated(failing: Failing) -> None:
    run = await failing.store.runs.add(keyed())
    failing.runs.errors = [StorageFull("/secret/place is full")]
    with pytest.raises(ResourceExhausted) as refused:
        await stored_now(failing.store.runs.change(Note(run.number, run.fence, 1.0, None, b"{}")))
    error = refused.value
    assert (error.message, error.details) == (
        "The call cannot be stored now",
        {"reason": "storage_failed", "retryable": True},
    )


async def test_changes_end_when_something_has_changed(failing: Failing) -> None:
    store = failing.store
    first = store.changes
    assert store.changes is first
    store.changed()
    assert first.done()
    assert store.changes is not first


@pytest.mark.parametrize("failing", [RandomIds()], indirect=True)
async def test_message_ids_are_uuids_in_the_order_of_time(failing: Failing) -> None:
    made = []
    for _ in range(3):
        made.append(UUID(failing.store.message_id()))
        failing.clock.advance(0.001)
    assert made == sorted(made)
    assert {each.version for each in made} == {4}


async def test_message_ids_differ_whatever_ids_are_made_of(failing: Failing) -> None:
    store = failing.store
    assert len({store.message_id() for _ in range(3)}) == 3


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_key_is_free_for_its_repeat_though_its_call_was_stored_and_nobody_knows(
    tmp_path: Path, idempotent: bool
) -> None:
    pay = Effect(idempotent=idempotent)
    async with opened_storages("memory", tmp_path) as (storage,):
        runs = Uncertain(storage.port(Runs))
        async with Kept(None).serve(pay.tool, runs=(runs, storage.port(LedgerAdmin))) as server:
            client = await server.client()
            assert error_in(await call(client))["details"]["outcome"] == "UNKNOWN"
            assert [is_repeat(await call(client)) for _ in range(2)] == [False, True]
    assert pay.count == 1


async def test_a_call_that_was_stored_and_nobody_knows_is_answered_though_it_cannot_be_given_back(
    tmp_path: Path,
) -> None:
    pay = Effect()
    async with asyncio.timeout(PATIENCE), opened_storages("memory", tmp_path) as (storage,):
        runs = Uncertain(storage.port(Runs))
        runs.later = [StorageFull("full")]
        async with Kept(None).serve(pay.tool, runs=(runs, storage.port(LedgerAdmin))) as server:
            assert error_in(await call(await server.client()))["details"]["outcome"] == "UNKNOWN"
    assert (pay.count, runs.later) == (0, [])


@pytest.mark.parametrize("begins", [True, False], ids=["added", "begun"])
async def test_a_task_that_was_stored_and_nobody_knows_runs_once(tmp_path: Path, begins: bool) -> None:
    first, pay = Effect("first", task="optional"), Effect(task="optional")
    first.gate.set() if begins else first.gate.clear()
    async with asyncio.timeout(PATIENCE), opened_storages("memory", tmp_path) as (storage,):
        runs = Uncertain(storage.port(Runs))
        runs.left = 1 if begins else 4  # Of two tasks, one begins at once and ends, and then the other begins.
        config = {"tasks": {"max_concurrent": 1}}
        options: dict[str, Any] = {"runs": (runs, storage.port(LedgerAdmin)), "config": config}
        async with Kept(None).serve(first.tool, pay.tool, **options) as server:
            if begins:
                with pytest.raises(InternalFailure):
                    await server.runtime.create_task("pay", {})
            else:
                await server.runtime.create_task("first", {})
                await server.runtime.create_task("pay", {})
                first.gate.set()
            await until(pay.ended.is_set)
    assert pay.count == 1
