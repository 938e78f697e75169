"""Ledgers on one database, as several processes have them: who holds an agent, and who takes it over."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dragoman.adapters.process_locks import ProcessLocks
from dragoman.adapters.sqlite_database import FILE_NAME
from dragoman.agents.ledger import EntryStatus, Hold, Query, Settlement
from dragoman.errors import LeaseLost
from tests.support.ledger_entries import done, event, found, held, request, response
from tests.support.ledger_processes import LEASE, BootClock, Process, processes


async def test_an_agent_belongs_to_one_process_while_that_is_alive(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], _):
        assert await one.ledger.hold("a") == Hold("a", 1, 0, {})
        assert await two.ledger.hold("a") is None
        assert await two.ledger.hold("b") == Hold("b", 1, 0, {})
        await two.ledger.release(["a"])  # It is not its own to give back.
        assert await two.ledger.hold("a") is None
        await one.ledger.release(["a"])
        assert await two.ledger.hold("a") == Hold("a", 2, 0, {})
        await two.ledger.close()
        assert await one.ledger.hold("b") == Hold("b", 2, 0, {})


async def test_asking_again_for_an_agent_that_another_process_holds_writes_nothing(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], _):
        await held(one.ledger)
        assert await two.ledger.hold("a") is None
        with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
            before = connection.execute("PRAGMA data_version").fetchone()
            assert await two.ledger.hold("a") is None
            assert connection.execute("PRAGMA data_version").fetchone() == before


async def test_a_process_that_has_ended_is_taken_over_from_at_once(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], _):
        hold = await held(one.ledger)
        await one.ledger.settle(done(hold, None, state={"k": b"1"}))
        one.end()
        assert await two.ledger.hold("a") == Hold("a", 2, 1, {"k": b"1"}, has_crashed=True)


async def test_a_process_that_is_silent_for_its_lease_is_taken_over_from_and_its_settlement_refused(
    tmp_path: Path,
) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], clock):
        asked = await one.ledger.accept(request("m1"))
        old = await held(one.ledger)
        clock.run(LEASE - 0.1, two.process)
        assert await two.ledger.hold("a") is None
        clock.run(0.1, two.process)
        new = await two.ledger.hold("a")
        assert new == Hold("a", 2, 0, {}, has_crashed=True)
        with pytest.raises(LeaseLost):
            await one.ledger.begin(asked.number, "a", old.epoch)
        for epoch in (old.epoch, new.epoch):  # Even if it could guess.
            with pytest.raises(LeaseLost):
                await one.ledger.settle(
                    Settlement(
                        agent="a",
                        epoch=epoch,
                        version=0,
                        at=1.0,
                        number=asked.number,
                        state={"k": b"1"},
                        sends=[response(asked, b"1"), event("m2", "a", "b")],
                    )
                )
        assert await two.ledger.state("a") == {}
        assert [each.message_id for each in await two.admin.page(Query())] == ["m1"]
        assert await one.ledger.hold("a") is None
        await two.ledger.settle(done(new, await found(two.ledger, asked), sends=[response(asked, b"2")]))
        assert await one.ledger.result("x", "r") == b"2"


async def test_agents_of_processes_that_sleep_together_stay_where_they_are(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], clock):
        clock.run(LEASE, two.process)
        await held(one.ledger)
        clock.run(3 * LEASE)
        assert await two.ledger.hold("a") is None
        assert not two.process.seems_alive("nobody", clock.seconds + 1)
        one.end()  # A free lock is no matter of time.
        assert await two.ledger.hold("a") == Hold("a", 2, 0, {}, has_crashed=True)


async def test_a_lease_is_renewed_while_the_process_is_alive(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], clock):
        is_alive = True
        await held(one.ledger)
        one.ledger.watch(lambda: None, lambda: None, 0.1, lambda: is_alive)
        until_then = f"SELECT until FROM ledger_process WHERE id = '{one.name}'"

        async def lease() -> float:
            return float(await one.database.read(lambda connection: connection.execute(until_then).fetchone()[0]))

        async with asyncio.timeout(60):
            clock.seconds += 5
            while await lease() != clock.seconds + 0.1:  # noqa: ASYNC110 - nobody tells when the thread renews it
                await asyncio.sleep(0.01)
        assert await two.ledger.hold("a") is None
        is_alive = False
        clock.seconds += 0.2
        async with asyncio.timeout(60):
            while await two.ledger.hold("a") is None:  # A renewal may have been under way.
                clock.seconds += 0.2
                await asyncio.sleep(0.01)


async def test_what_another_process_writes_is_noticed(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as ([one, two], _):
        await held(one.ledger)
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        one.ledger.watch(lambda: loop.call_soon_threadsafe(changed.set), lambda: None, 10.0, lambda: True)
        sent = await two.ledger.accept(event("m1"))
        async with asyncio.timeout(60):
            while await one.ledger.news(0) != ([sent], sent.number):
                await changed.wait()
                changed.clear()


async def test_each_crash_counts_as_an_attempt_of_the_message_that_came_first(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s", "s") as (all_three, _):
        first = await all_three[0].ledger.accept(event("m1"))
        second = await all_three[0].ledger.accept(event("m2"))
        for number, process in enumerate(all_three):
            hold = await process.ledger.hold("a")
            assert hold is not None
            counted = await process.ledger.get([first.number, second.number])
            assert [each.attempts for each in counted] == [number, 0]
            if number < 2:
                process.end()
        await all_three[2].ledger.begin(first.number, "a", hold.epoch)
        all_three[2].end()
        async with processes(tmp_path, "s") as ([last], _):
            assert await last.ledger.hold("a") is not None
            running = await found(last.ledger, first)
            assert (running.status, running.attempts) == (EntryStatus.RUNNING, 3)  # It was counted when it began.


async def test_spaces_know_nothing_of_each_other(tmp_path: Path) -> None:
    async with processes(tmp_path, "one", "two") as ([one, two], _):
        asked = await one.ledger.accept(request("m1", expires_at=1.0))
        hold = await held(one.ledger)
        await one.ledger.settle(done(hold, asked, status=EntryStatus.DEAD, state={"k": b"1"}))
        assert await two.ledger.hold("a") == Hold("a", 1, 0, {})
        assert await two.ledger.waiting("a", 0, 10) == []
        assert (await two.ledger.news(0))[0] == []
        assert await two.ledger.state("a") == {}
        assert await two.ledger.get([asked.number]) == []
        assert await two.admin.page(Query()) == []
        assert (await two.admin.figures())["byStatus"] == {}
        assert await two.admin.redrive(asked.number, "m2", 1.0, 2.0) is None
        assert await two.admin.purge(100.0, 100) == 0
        theirs = await two.ledger.accept(request("m3"))
        assert (theirs.is_new, theirs.seq) == (True, 1)
        assert await one.admin.purge(100.0, 100) == 1


async def test_the_same_request_from_two_processes_at_once_is_one(tmp_path: Path) -> None:
    async with processes(tmp_path, "s", "s") as (both, _):
        accepted = await asyncio.gather(
            *(both[number % 2].ledger.accept(request(f"m{number}")) for number in range(100))
        )
        assert len({each.number for each in accepted}) == 1
        assert sum(each.is_new for each in accepted) == 1


async def test_verify_says_what_contradicts_the_rules(tmp_path: Path) -> None:
    clock = BootClock()
    broken = Process(tmp_path, clock)
    asked = await broken.ledger.accept(request("m1"))
    await broken.ledger.accept(event("m2"))
    hold = await held(broken.ledger)
    payload = b'"' + b"x" * 70_000 + b'"'
    (answer,) = await broken.ledger.settle(done(hold, asked, sends=[response(asked, payload)]))
    assert await broken.admin.verify() == []
    for statement, said in (
        ("DELETE FROM ledger_entry WHERE message_id = 'm2'", "has given out 2 sequence numbers, and 1 are"),
        ("UPDATE ledger_entry SET fence = 9 WHERE message_id = 'm1'", "was handled in epoch 9, and its agent is in"),
        ("UPDATE ledger_entry SET seq = 7 WHERE message_id = 'm1'", "has the sequence number 7, and its pair has"),
        ("DELETE FROM ledger_result", f"message {answer.number} refers to a result that is missing"),
        ("UPDATE ledger_entry SET status = 'dead' WHERE message_id = 'm1'", "has a response, and is dead"),
        ("UPDATE ledger_entry SET kind = 'EVENT' WHERE message_id = 'm1'", f"response {answer.number} has no request"),
        (
            "UPDATE ledger_entry SET kind = 'REQUEST', status = 'completed', request_id = 'q' WHERE message_id = 'm1'",
            "is completed, and has no response",
        ),
    ):
        await broken.database.write(lambda writing, statement=statement: writing.execute(statement))
        assert any(said in each for each in await broken.admin.verify()), said
    await broken.close()


async def test_a_ledger_that_is_closed_leaves_no_lock_behind(tmp_path: Path) -> None:
    async with processes(tmp_path, "s") as ([one], _):
        await held(one.ledger)
        assert len(list((tmp_path / "locks").iterdir())) == 1
        await one.ledger.close()
        assert list((tmp_path / "locks").iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_child_does_not_keep_the_lock_of_a_process_that_has_ended(tmp_path: Path) -> None:
    told, tell = os.pipe()
    ends, end = os.pipe()
    server = os.fork()
    if server == 0:
        os.close(end)
        ProcessLocks(tmp_path).take("p")
        if os.fork() == 0:
            os.write(tell, b"!")
            os.read(ends, 1)  # It goes on when the server has ended.
        os._exit(0)
    try:
        os.read(told, 1)
        os.waitpid(server, 0)
        assert (tmp_path / "p.lock").exists()
        assert ProcessLocks(tmp_path).is_free("p")
    finally:
        os.close(end)


def test_a_lock_is_free_when_nobody_holds_it(tmp_path: Path) -> None:
    mine, theirs = ProcessLocks(tmp_path), ProcessLocks(tmp_path)
    assert theirs.is_free("p")
    mine.take("p")
    assert not theirs.is_free("p")
    with pytest.raises(OSError, match="unavailable"):
        theirs.take("p")
    mine.give_back("p")
    mine.give_back("p")
    assert theirs.is_free("p")
