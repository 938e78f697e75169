"""Runs on one database, as several processes have them: which process a run belongs to, and which takes it over."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.agents.ledger import EntryStatus
from dragoman.agents.migrations import MIGRATIONS
from dragoman.errors import LeaseLost
from dragoman.tasks.port import MOST_ATTEMPTS, Answered, Begin, Cancelled, Note, Released, RunQuery
from tests.support.ledger_entries import done, held, request, response
from tests.support.ledger_processes import LEASE, BootClock, Process, processes
from tests.support.run_entries import UNKNOWN, ended, keyed, question, stored, task


async def test_a_run_belongs_to_the_process_that_began_it(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], _):
        run = await one.runs.add(keyed())
        seen = await two.runs.add(keyed(message_id="other"))
        assert (seen.number, seen.is_new, seen.is_held, seen.status) == (run.number, False, True, "running")
        assert (await stored(two.runs, run)).is_held
        for change in (Note(run.number, 1, 2.0, "x", b"{}"), ended(run, b"2"), Released(run.number, 1, 2.0)):
            with pytest.raises(LeaseLost):
                await two.runs.change(change)  # Even with the right fence.
        await one.runs.change(ended(run))
        assert (await stored(two.runs, run)).result == b"1"


async def test_clients_of_any_process_answer_and_cancel(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], _):
        run = await one.runs.add(task(begins=True))
        (asked,) = (await one.runs.change(question(run))).pending
        answered = await two.runs.change(Answered(run.number, 3.0, {asked.key: b"1"}))
        assert (answered.status, answered.is_held, list(answered.pending)) == ("running", True, [])
        await two.runs.change(Cancelled(run.number, 4.0, 200.0))
        found = await stored(one.runs, run)
        assert (found.status, found.is_cancelled, found.questions[0].answer) == ("running", True, b"1")


async def test_one_process_begins_a_task_that_waits(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as (both, _):
        run = await both[0].runs.add(task())
        begun = await asyncio.gather(
            *(each.runs.change(Begin(run.number, 2.0)) for each in both), return_exceptions=True
        )
        assert sorted(type(each).__name__ for each in begun) == ["LeaseLost", "Run"]


async def test_the_same_run_from_two_processes_at_once_is_one(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as (both, _):
        added = await asyncio.gather(
            *(both[number % 2].runs.add(keyed(message_id=f"m{number}")) for number in range(100))
        )
        assert len({each.number for each in added}) == 1
        assert sum(each.is_new for each in added) == 1


async def made_by(process: Process) -> dict[str, Any]:
    """A run of each kind that this process has begun, and one that waits."""
    new = {
        "task": task("task", begins=True),
        "once": task("once", begins=True, is_repeatable=False),
        "key": keyed("key", is_repeatable=True),
        "key once": keyed("key once"),
        "waits": task("waits"),
    }
    return {name: await process.runs.add(each) for name, each in new.items()}


async def statuses(process: Process) -> dict[str, str]:
    return {
        each.request_id: each.status.value for each in await process.runs.page(RunQuery(tasks_only=False, limit=1000))
    }


GIVEN_UP = {"task": "waiting", "once": "unknown", "key": "waiting", "key once": "unknown", "waits": "waiting"}
"""What becomes of them."""


async def test_a_live_process_is_not_swept(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], clock):
        await made_by(one)
        clock.run(LEASE - 0.1, one.process, two.process)
        before = await statuses(two)
        assert await two.runs.sweep(9.0, UNKNOWN) == 0
        assert await one.runs.sweep(9.0, UNKNOWN) == 0
        assert await statuses(two) == before


async def test_looking_for_processes_that_have_ended_writes_nothing(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], _):
        await made_by(one)
        assert await two.runs.sweep(9.0, UNKNOWN) == 0
        with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
            before = connection.execute("PRAGMA data_version").fetchone()
            assert await two.runs.sweep(9.0, UNKNOWN) == 0
            assert connection.execute("PRAGMA data_version").fetchone() == before


@pytest.mark.parametrize("is_silent", [False, True], ids=["ended", "silent"])
async def test_the_runs_of_a_process_that_is_gone_are_given_up(tmp_path: Path, is_silent: bool) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], clock):
        made = await made_by(one)
        if is_silent:
            clock.run(LEASE, two.process)
        else:
            one.end()
        assert not (await stored(two.runs, made["task"])).is_held
        assert await two.runs.sweep(9.0, UNKNOWN) == 4
        assert await two.runs.sweep(9.0, UNKNOWN) == 0
        assert await statuses(two) == GIVEN_UP
        unknown = await stored(two.runs, made["key once"])
        assert (unknown.error, unknown.ended_at, unknown.expires_at) == (UNKNOWN, 9.0, 109.0)
        again = await two.runs.change(Begin(made["task"].number, 10.0))
        assert (again.fence, again.attempts, again.is_held) == (2, 2, True)
        for late in ("once", "key", "key once"):
            await one.runs.change(ended(made[late], b'"late"'))  # Nobody has begun them again.
            assert (await stored(two.runs, made[late])).result == b'"late"'
        with pytest.raises(LeaseLost):
            await one.runs.change(ended(made["task"], b'"late"'))
        await two.runs.change(ended(again, b'"new"'))
        assert (await stored(one.runs, again)).result == b'"new"'


@pytest.mark.parametrize("is_dead", [False, True], ids=["asleep", "dead"])
async def test_processes_that_sleep_together_are_not_silent(tmp_path: Path, is_dead: bool) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], clock):
        made = await made_by(one)
        clock.run(LEASE, one.process, two.process)
        await held(one.ledger)  # It renews the lease, as the watch does.
        clock.run(3 * LEASE)
        if is_dead:
            one.end()  # Its lock is free: no lease has to be waited for.
        assert (await stored(two.runs, made["task"])).is_held is not is_dead
        assert await two.runs.sweep(9.0, UNKNOWN) == (4 if is_dead else 0)
        if not is_dead:
            clock.run(LEASE - 0.1, two.process)
            assert await two.runs.sweep(9.0, UNKNOWN) == 0
            clock.run(0.1, two.process)  # The other one says nothing although it is awake: it is stopped.
            assert await two.runs.sweep(9.0, UNKNOWN) == 4


async def test_a_process_that_has_just_started_takes_nobody_for_silent(tmp_path: Path) -> None:
    async with processes(tmp_path, "s") as ([one], clock):
        await made_by(one)
        clock.run(3 * LEASE)
        new = Process(tmp_path, clock)
        assert await new.runs.sweep(9.0, UNKNOWN) == 0
        clock.run(LEASE, new.process)
        assert await new.runs.sweep(9.0, UNKNOWN) == 4
        await new.close()


async def test_a_process_that_was_silent_takes_part_again(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], clock):
        await one.runs.add(keyed("first", is_repeatable=True))
        clock.run(LEASE, two.process)
        assert await two.runs.sweep(9.0, UNKNOWN) == 1
        hold = await held(one.ledger)  # It renews the lease, as the watch does.
        run = await one.runs.add(keyed("second"))
        assert hold.epoch == 1
        assert await two.runs.sweep(9.0, UNKNOWN) == 0
        await one.runs.change(ended(run))


async def test_a_run_that_ended_with_too_many_processes_is_unknown(tmp_path: Path) -> None:
    async with processes(tmp_path, *("s" * (MOST_ATTEMPTS + 1))) as (made, _):
        run = await made[0].runs.add(task())
        for attempt, process in enumerate(made[:-1], 1):
            begun = await process.runs.change(Begin(run.number, float(attempt)))
            assert begun.attempts == attempt
            process.end()
            assert await made[-1].runs.sweep(attempt + 0.5, UNKNOWN) == 1
        after = await stored(made[-1].runs, run)
        assert (after.status, after.error) == ("unknown", UNKNOWN)


async def test_a_process_that_failed_to_enlist_is_in_the_ledger_with_its_first_run(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], _):
        await one.runs.add(task("t"))
        with pytest.raises(sqlite3.IntegrityError):  # The task id is in use, so nothing of this is stored.
            await one.runs.add(keyed("k1", task_id="t"))
        run = await one.runs.add(keyed("k2"))
        assert (await stored(two.runs, run)).is_held
        assert await two.runs.sweep(9.0, UNKNOWN) == 0


async def test_a_process_leaves_when_both_its_ledger_and_its_runs_are_closed(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], _):
        for port in (one.ledger, one.runs):
            port.watch(lambda: None, lambda: None, LEASE, lambda: True)
        await held(one.ledger)
        run = await one.runs.add(task(begins=True))
        await one.ledger.close()
        assert await two.ledger.hold("a") is not None
        assert (await stored(two.runs, run)).is_held
        assert await two.runs.sweep(9.0, UNKNOWN) == 0
        await one.runs.close(10.0, UNKNOWN)
        assert (await stored(two.runs, run)).status == "waiting"
        assert len(list((tmp_path / "locks").iterdir())) == 1  # The other process's.


async def test_a_lease_is_renewed_only_while_all_that_watch_are_alive(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], clock):
        is_alive = {"ledger": True, "runs": True}
        run = await one.runs.add(task(begins=True))
        one.ledger.watch(lambda: None, lambda: None, 0.1, lambda: is_alive["ledger"])
        one.runs.watch(lambda: None, lambda: None, 0.1, lambda: is_alive["runs"])
        until_then = f"SELECT until FROM ledger_process WHERE id = '{one.name}'"

        async def lease() -> float:
            return float(await one.database.read(lambda connection: connection.execute(until_then).fetchone()[0]))

        async with asyncio.timeout(60):
            clock.seconds += 5
            while await lease() != clock.seconds + 0.1:  # noqa: ASYNC110 - nobody tells when the thread renews it
                await asyncio.sleep(0.01)
        assert await two.runs.sweep(9.0, UNKNOWN) == 0
        is_alive["runs"] = False
        async with asyncio.timeout(60):
            while not await two.runs.sweep(9.0, UNKNOWN):  # A renewal may have been under way.
                clock.seconds += 0.2
                await asyncio.sleep(0.01)
        assert (await stored(two.runs, run)).status == "waiting"


async def test_what_another_process_stores_about_a_run_is_noticed(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], _):
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(changed.set)

        one.runs.watch(tell, lambda: None, LEASE, lambda: True)
        run = await one.runs.add(task(begins=True))
        await two.runs.change(Cancelled(run.number, 2.0, 200.0))
        async with asyncio.timeout(60):
            while not (await stored(one.runs, run)).is_cancelled:
                await changed.wait()
                changed.clear()


async def test_spaces_know_nothing_of_each_others_runs(tmp_path: Path) -> None:
    async with processes(tmp_path, "one", "two") as ([one, two], _):
        mine = await one.runs.add(task("t", begins=True, expires_at=2.0))
        waiting = await one.runs.add(task("w", expires_at=2.0))
        await one.runs.change(question(mine))
        ended_run = await one.runs.add(keyed("k", expires_at=2.0))
        await one.runs.change(ended(ended_run, expires_at=6.0))
        assert await two.runs.find(task_id="t") is None
        assert await two.runs.find(owner="ada", request_id="k") is None
        assert await two.runs.page(RunQuery(tasks_only=False)) == []
        assert await two.runs.count() == {"byStatus": {}, "oldest": None}
        assert await two.admin.purge(1e9, 100) == 0
        theirs = await two.runs.add(keyed("k", message_id="theirs", arguments=b"{}"))
        assert theirs.is_new
        one.end()
        assert await two.runs.sweep(9.0, UNKNOWN) == 0
        assert (await stored(two.runs, theirs)).is_held
        assert (await stored(one.runs, mine)).status == "running"
        await two.runs.change(ended(theirs, b"2"))
        assert (await stored(one.runs, ended_run)).result == b"1"
        assert (await stored(one.runs, waiting)).status == "waiting"


@pytest.mark.parametrize("change", ["begin", "answer", "cancel"])
async def test_a_number_of_another_space_changes_nothing(tmp_path: Path, change: str) -> None:
    async with processes(tmp_path, "one", "two") as ([one, two], _):
        waiting = await one.runs.add(task("w"))
        running = await one.runs.add(task("t", begins=True))
        (asked,) = (await one.runs.change(question(running))).pending
        before = [await stored(one.runs, each) for each in (waiting, running)]
        changes: dict[str, Any] = {
            "begin": Begin(waiting.number, 3.0),
            "answer": Answered(running.number, 3.0, {asked.key: b"1"}),
            "cancel": Cancelled(waiting.number, 3.0, 200.0),
        }
        with pytest.raises(LeaseLost):
            await two.runs.change(changes[change])
        assert [await stored(one.runs, each) for each in (waiting, running)] == before


async def test_a_database_of_agents_alone_gets_the_tables_of_runs(tmp_path: Path) -> None:
    old = Process(tmp_path, BootClock(), migrations=MIGRATIONS[:1])
    asked = await old.ledger.accept(request("m1"))
    hold = await held(old.ledger)
    await old.ledger.settle(done(hold, asked, sends=[response(asked, b"1")]))
    await old.ledger.close()
    await old.database.close()
    async with processes(tmp_path, "s") as ([new], _):
        assert await new.ledger.result("x", "r") == b"1"
        assert await new.runs.page(RunQuery(tasks_only=False)) == []
        run = await new.runs.add(keyed())
        await new.runs.change(ended(run))
        assert (await stored(new.runs, run)).result == b"1"
        assert await new.admin.purge(1e9, 100) == 4


async def test_verify_tells_what_contradicts_the_rules_of_runs(tmp_path: Path) -> None:
    broken = Process(tmp_path, BootClock())
    running = await broken.runs.add(keyed("running"))
    waiting = await broken.runs.add(task("waiting"))
    finished = await broken.runs.add(keyed("finished"))
    await broken.runs.change(ended(finished))
    assert await broken.admin.verify() == []

    async def said_after(statement: str) -> list[str]:
        await broken.database.write(lambda writing: writing.execute(statement))
        return await broken.admin.verify()

    where = f"WHERE number = {running.number}"
    assert await said_after(f"UPDATE ledger_run SET process = NULL {where}") == [
        f"run {running.number} is running, and belongs to no process"
    ]
    assert await said_after(f"UPDATE ledger_run SET process = 'p' {where}") == []
    assert await said_after(f"UPDATE ledger_run SET process = 'p' WHERE number = {waiting.number}") == [
        f"run {waiting.number} is waiting, and belongs to a process"
    ]
    assert await said_after(f"UPDATE ledger_run SET process = NULL WHERE number = {waiting.number}") == []
    assert await said_after(f"UPDATE ledger_entry SET attempts = 3 {where}") == [
        f"run {running.number} was begun 3 times, and its fence is lower"
    ]
    assert await said_after(f"UPDATE ledger_entry SET attempts = 1 {where}") == []
    assert await said_after(f"DELETE FROM ledger_run {where}") == [
        f"message {running.number} is to a tool, and is no run"
    ]
    await broken.close()


async def test_a_purge_leaves_nothing_of_a_run_behind(tmp_path: Path) -> None:
    async with processes(tmp_path, "s") as ([one], _):
        run = await one.runs.add(task(begins=True))
        await one.runs.change(question(run))
        await one.runs.change(ended(run, b'"' + b"x" * 70_000 + b'"', status=EntryStatus.COMPLETED))
        assert await one.admin.purge(1e9, 100) == 2
        tables = ("ledger_entry", "ledger_run", "ledger_question", "ledger_result")
        union = " UNION ALL ".join(f"SELECT count(*) FROM {table}" for table in tables)
        assert await one.database.read(lambda reading: reading.execute(union).fetchall()) == [(0,)] * 4


async def test_task_that_is_looked_at_again_is_read_once_and_anew_when_another_process_has_changed_it(
    tmp_path: Path,
) -> None:
    async with processes(tmp_path, "s", "s") as ([one, other], _):
        added = await one.runs.add(task("t1", begins=False))
        first = await one.runs.find(task_id="t1")
        assert await one.runs.find(task_id="t1") is first
        await other.runs.change(Cancelled(added.number, 5.0, 100.0))
        found = await one.runs.find(task_id="t1")
        assert found is not None
        assert found.status is EntryStatus.CANCELLED
