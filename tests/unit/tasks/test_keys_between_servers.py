"""Idempotency keys of servers on one data directory: next to each other, and one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dragoman import Image, tool
from dragoman.errors import NotFound, ResourceExhausted
from dragoman.testing import ManualClock
from tests.contract.engines import opened_ledger, opened_runs
from tests.support.agents import quiet
from tests.support.answers import error_in
from tests.support.calls import Hung, happened
from tests.support.keyed_calls import KEY, Effect, Kept, begin_keyed, call, is_repeat, without_ids
from tests.support.waiting import PATIENCE, until

UNKNOWN = {"outcome": "UNKNOWN", "retryable": False}
INTERRUPTED = "The server ended while the tool ran, and the tool must not run twice"


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    yield Kept(tmp_path)
    async with opened_ledger("sqlite", tmp_path) as (_, admin):
        assert await admin.verify() == []  # Whatever a test does.


def end_processes(folder: Path) -> None:
    """Free the locks of all servers on a folder, as the system does when their processes are killed."""
    for lock in (folder / "locks").iterdir():
        lock.unlink()


@pytest.mark.parametrize("dialect", ["structured", "envelope", "plain"])
@pytest.mark.parametrize(
    "outcome",
    [None, {"a": [1, 2]}, Image(b"\x89PNG\r\n\x1a\n"), "x" * 100_000, NotFound("nothing", {"a": 1}), ValueError("no")],
    ids=["nothing", "value", "image", "large", "tool error", "exception"],
)
async def test_an_outcome_is_given_again_after_a_restart(kept: Kept, dialect: str, outcome: Any) -> None:
    runs = 0

    @tool
    async def make() -> Any:
        nonlocal runs
        runs += 1
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    long = {"response": {"dialect": dialect, "max_string_length": 1_000_000}}
    results = []
    for _ in range(2):
        async with kept.serve(make, config=long) as server:
            results.append(await call(await server.client(), "make"))
    assert [is_repeat(each) for each in results] == [False, True]
    assert without_ids(results[1]) == without_ids(results[0])
    assert runs == 1


async def test_a_stored_result_is_worded_by_the_dialect_of_the_server_that_gives_it(kept: Kept) -> None:
    pay = Effect()
    texts = []
    for dialect in ("structured", "envelope"):
        async with kept.serve(pay.tool, config={"response": {"dialect": dialect}}) as server:
            texts.append(without_ids(await call(await server.client()))["content"][0]["text"])
    value = {"amount": 1, "number": 1}
    assert texts == [value, {"success": True, "data": value, "metadata": {"cached": False, "truncated": False}}]


async def test_a_key_with_other_arguments_is_refused_after_a_restart(kept: Kept) -> None:
    pay = Effect()
    async with kept.serve(pay.tool) as server:
        await call(await server.client(), amount=471108154711)
    async with kept.serve(pay.tool) as server:
        refused = await call(await server.client(), amount=2)
        assert error_in(refused)["details"]["reason"] == "idempotency_conflict"
        assert "471108154711" not in str(refused)
    assert pay.count == 1


async def test_a_key_is_free_again_when_its_time_is_over(kept: Kept) -> None:
    pay = Effect()
    today = ManualClock()
    almost, tomorrow = (ManualClock(today.now() + timedelta(hours=24, seconds=more)) for more in (-1, 0))
    for clock in (today, almost):
        async with kept.serve(pay.tool, clock=clock) as server:
            await call(await server.client())
    assert pay.count == 1
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool, clock=tomorrow) as server:
        client = await server.client()
        while is_repeat(await call(client)):  # Until it is purged, which nobody tells.
            tomorrow.advance(1800.0)
            await asyncio.sleep(0.01)
    assert pay.count == 2


async def test_repeats_at_two_servers_at_once_run_once(kept: Kept) -> None:
    pay = Effect()
    pay.gate.clear()
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool) as one, kept.serve(pay.tool) as two:
        clients = [await one.client(), await two.client()]
        begun = [(client, begin_keyed(client)) for client in clients * 50]
        await pay.begun.wait()
        pay.gate.set()
        results = [(await client.answer(each))["result"] for client, each in begun]
        assert pay.count == 1
        assert [without_ids(each) for each in results] == [without_ids(results[0])] * 100
        assert [is_repeat(each) for each in results].count(False) == 1


async def test_a_repeat_waits_for_another_server_until_its_own_deadline(kept: Kept) -> None:
    pay = Effect(timeout_ms=1000)
    pay.gate.clear()
    clock = ManualClock()
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool) as one, kept.serve(pay.tool, clock=clock) as two:
        first, repeating = await one.client(), await two.client()
        begun = begin_keyed(first)
        await pay.begun.wait()
        refused = await call(repeating, amount=2)
        assert error_in(refused)["details"]["reason"] == "idempotency_conflict"
        waiting = begin_keyed(repeating)
        await quiet()
        clock.advance(1.0)
        assert error_in((await repeating.answer(waiting))["result"])["code"] == "TIMEOUT"
        again = begin_keyed(repeating)
        pay.gate.set()
        results = [(await first.answer(begun))["result"], (await repeating.answer(again))["result"]]
        assert [is_repeat(each) for each in results] == [False, True]
        assert pay.count == 1


async def test_a_tool_that_is_not_idempotent_never_runs_again_after_its_process_was_killed(kept: Kept) -> None:
    assert kept.folder is not None
    pay = Effect()
    pay.gate.clear()
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool) as one, kept.serve(pay.tool) as two:
        killed, client = await one.client(), await two.client()
        begin_keyed(killed)
        await pay.begun.wait()
        end_processes(kept.folder)
        for _ in range(2):
            repeat = await call(client)
            error = error_in(repeat)
            assert (error["code"], error["message"], error["details"]) == ("INTERNAL", INTERRUPTED, UNKNOWN)
            assert is_repeat(repeat)
        assert error_in(await call(client, amount=2))["details"]["reason"] == "idempotency_conflict"
    async with kept.serve(pay.tool) as server:
        assert error_in(await call(await server.client()))["details"] == UNKNOWN
    assert pay.count == 1


async def test_a_repeat_that_waits_for_a_process_that_is_killed_is_told(kept: Kept) -> None:
    assert kept.folder is not None
    pay, add = Effect(), Effect("add", idempotent=True)
    pay.gate.clear()
    add.gate.clear()
    clock = ManualClock()
    async with (
        asyncio.timeout(PATIENCE),
        kept.serve(pay.tool, add.tool) as one,
        kept.serve(pay.tool, add.tool, clock=clock) as two,
    ):
        killed, client = await one.client(), await two.client()
        for name, effect in (("pay", pay), ("add", add)):
            begin_keyed(killed, name)
            await effect.begun.wait()
        waiting = [begin_keyed(client, name) for name in ("pay", "add")]
        await quiet()
        end_processes(kept.folder)
        clock.advance(1.0)  # It looks for processes that have ended.
        assert error_in((await client.answer(waiting[0]))["result"])["details"] == UNKNOWN
        await until(lambda: add.count == 2)
        add.gate.set()
        result = (await client.answer(waiting[1]))["result"]
        assert (result["isError"], is_repeat(result)) == (False, False)
        pay.gate.set()
    assert (pay.count, add.count) == (1, 2)


async def test_an_idempotent_tool_runs_again_after_its_process_was_killed(kept: Kept) -> None:
    assert kept.folder is not None
    pay = Effect(idempotent=True)
    pay.gate.clear()
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool) as one:
        killed = await one.client()
        begun = begin_keyed(killed)
        await pay.begun.wait()
        end_processes(kept.folder)
        pay.begun.clear()
        async with kept.serve(pay.tool) as two:
            client = await two.client()
            again = begin_keyed(client)
            await pay.begun.wait()
            pay.gate.set()
            await killed.answer(begun)
            result = (await client.answer(again))["result"]
            repeat = await call(client)
    assert pay.count == 2
    assert (is_repeat(result), is_repeat(repeat)) == (False, True)
    assert without_ids(repeat) == without_ids(result)


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_call_whose_process_was_silent_is_answered_as_its_repeats_are(
    kept: Kept, fails: bool, idempotent: bool
) -> None:
    assert kept.folder is not None
    pay = Effect(idempotent=idempotent)
    pay.gate.clear()
    pay.outcome = NotFound("nothing", {"a": 1}) if fails else None
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool) as one, kept.serve(pay.tool) as two:
        stopped, client = await one.client(), await two.client()
        begun = begin_keyed(stopped)
        await pay.begun.wait()
        end_processes(kept.folder)  # As if its lease had ended: it goes on later, and knows nothing of it.
        async with opened_runs("sqlite", kept.folder) as (runs, _):
            assert await runs.sweep(0.0, b"{}") == 1
        pay.gate.set()
        first = (await stopped.answer(begun))["result"]
        repeats = [await call(each) for each in (client, stopped)]
    assert pay.count == 1
    assert [is_repeat(each) for each in (first, *repeats)] == [False, True, True]
    assert [without_ids(each) for each in repeats] == [without_ids(first)] * 2


@pytest.mark.parametrize("fails", [False, True])
async def test_a_call_that_another_process_has_run_again_is_answered_as_its_repeats_are(
    kept: Kept, fails: bool
) -> None:
    assert kept.folder is not None
    slow, quick = Effect(idempotent=True), Effect(idempotent=True)
    slow.gate.clear()
    slow.outcome, quick.outcome = NotFound("nothing", {"a": 1}) if fails else None, "of the other process"
    async with asyncio.timeout(PATIENCE), kept.serve(slow.tool) as one, kept.serve(quick.tool) as two:
        stopped, client = await one.client(), await two.client()
        begun = begin_keyed(stopped)
        await slow.begun.wait()
        end_processes(kept.folder)
        repeat = await call(client)
        slow.gate.set()
        first = (await stopped.answer(begun))["result"]
    assert (slow.count, quick.count) == (1, 1)
    assert (is_repeat(first), is_repeat(repeat)) == (True, False)
    assert without_ids(first) == without_ids(repeat)


async def test_an_outcome_that_is_stored_nowhere_is_not_answered(kept: Kept) -> None:
    assert kept.folder is not None
    slow, failing = Effect(idempotent=True), Effect(idempotent=True)
    slow.gate.clear()
    failing.outcome = ResourceExhausted("later", {"retryable": True})
    async with asyncio.timeout(PATIENCE), kept.serve(slow.tool) as one, kept.serve(failing.tool) as two:
        stopped, client = await one.client(), await two.client()
        begun = begin_keyed(stopped)
        await slow.begun.wait()
        end_processes(kept.folder)
        assert error_in(await call(client))["details"] == {"retryable": True}  # Which is not stored: a repeat runs.
        slow.gate.set()
        first = (await stopped.answer(begun))["result"]
        assert error_in(first)["details"] == {"outcome": "UNKNOWN", "retryable": True}
        failing.outcome = None
        assert [is_repeat(await call(each)) for each in (client, stopped)] == [False, True]


async def test_a_plain_call_whose_process_was_lost_can_be_repeated_as_a_task(kept: Kept) -> None:
    assert kept.folder is not None
    pay = Effect(task="optional", idempotent=True)
    pay.gate.clear()
    async with asyncio.timeout(PATIENCE), kept.serve(pay.tool) as one, kept.serve(pay.tool) as two:
        begin_keyed(await one.client())
        await pay.begun.wait()
        end_processes(kept.folder)
        await two.runtime.create_task("pay", {}, idempotency_key=KEY)
        await until(lambda: pay.count == 2)
        pay.gate.set()


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_call_that_a_stop_interrupts_is_unknown_or_runs_again(kept: Kept, idempotent: bool) -> None:
    pay = Effect(idempotent=idempotent)
    pay.gate.clear()
    async with kept.serve(pay.tool) as server:
        begin_keyed(await server.client())
        await pay.begun.wait()
    pay.gate.set()
    async with kept.serve(pay.tool) as server:
        results = [await call(await server.client()) for _ in range(2)]
    if idempotent:
        assert [is_repeat(each) for each in results] == [False, True]
    else:
        assert [error_in(each)["details"] for each in results] == [UNKNOWN] * 2
    assert pay.count == (2 if idempotent else 1)


async def test_a_call_on_a_thread_that_a_stop_interrupts_is_unknown(kept: Kept) -> None:
    hung = Hung()
    async with kept.serve(hung.tool) as server:
        begin_keyed(await server.client(), "hang")
        await happened(hung.begun)
    hung.release.set()
    await happened(hung.finished)
    async with kept.serve(hung.tool) as server:
        assert error_in(await call(await server.client(), "hang"))["details"] == UNKNOWN


async def test_a_clock_that_is_a_day_ahead_for_a_moment_makes_no_key_free(kept: Kept) -> None:
    pay, clock = Effect(), ManualClock()
    async with kept.serve(pay.tool, clock=clock) as server:
        client = await server.client()
        await call(client)
        clock.jump(25 * 3600)
        for _ in range(4):
            clock.advance(10.0)
            await quiet()
            assert is_repeat(await call(client))
        clock.jump(-25 * 3600)
        clock.advance(10.0)
        assert is_repeat(await call(client))
    assert pay.count == 1
