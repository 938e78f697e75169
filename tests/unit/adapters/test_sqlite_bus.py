"""A bus in a database, as several processes have it: leases, transactions of callers, and what its statements cost."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from dragoman.adapters import sqlite_bus_claims, sqlite_bus_rows, sqlite_dead_letters
from dragoman.adapters.sqlite_bus import SqliteBus
from dragoman.adapters.sqlite_database import FILE_NAME, SqliteDatabase
from dragoman.adapters.sqlite_dead_letters import SqliteDeadLetters
from dragoman.adapters.sqlite_ledger_process import SqliteProcess
from dragoman.adapters.sqlite_writer import Transaction
from dragoman.agents.migrations import MIGRATIONS as AGENTS
from dragoman.clock import Timer
from dragoman.errors import BusFull, StorageBusy, StorageClosed, StorageUncertain
from dragoman.messaging import bus as limits
from dragoman.messaging.bus import BusDelivery
from dragoman.messaging.migrations import MIGRATIONS
from dragoman.testing import ManualClock
from tests.support.bus_messages import ERROR, message, publish, subscribed, taken, taken_ids
from tests.support.ledger_processes import BootClock
from tests.support.waiting import until

ACK = 30.0
T = TypeVar("T")


class CountedDatabase(SqliteDatabase):
    """Counts what is written, and refuses it while the test says so."""

    writes = 0
    is_busy = False
    is_uncertain = False
    """Whether what is written is stored, and nobody knows."""

    def write(self, function: Callable[[Transaction], T]) -> Awaitable[T]:
        self.writes += 1
        if self.is_busy:
            raise StorageBusy("another process writes")
        return self._unknown(super().write(function)) if self.is_uncertain else super().write(function)

    async def _unknown(self, writing: Awaitable[T]) -> T:
        await writing
        raise StorageUncertain("disk I/O error")


class CountedClock(ManualClock):
    """Counts the timers that were asked for, and those that were due."""

    timers = due = 0

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        def count() -> None:
            self.due += 1
            callback()

        self.timers += 1
        return super().call_later(seconds, count)


class BusProcess:
    """A bus as one process has it."""

    def __init__(self, folder: Path, clock: ManualClock, boot_clock: BootClock) -> None:
        self._folder = folder
        self.database = CountedDatabase(folder / FILE_NAME, (*AGENTS, *MIGRATIONS))
        self.process = SqliteProcess(self.database, boot_clock=boot_clock)
        self.bus = SqliteBus(self.database, self.process, clock, boot_clock=boot_clock)
        self.dead = SqliteDeadLetters(self.database, clock, self.bus.wake_in)

    def end(self) -> None:
        """As the system does when a process ends."""
        (self._folder / "locks" / f"{self.process.id}.lock").unlink()

    async def close(self) -> None:
        await self.bus.close()
        await self.database.close()


class Machine:
    """Processes with one database and the clocks of one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock, self.boot_clock = CountedClock(), BootClock()
        self.one, self.two = (BusProcess(folder, self.clock, self.boot_clock) for _ in range(2))

    def run(self, seconds: float) -> None:
        """Let time pass in which both processes are awake, and no timer is due."""
        self.boot_clock.run(seconds, self.one.process, self.two.process)

    async def later(self, waiting: asyncio.Task[list[BusDelivery]]) -> list[BusDelivery]:
        """What is taken while the wall clock runs, and with it the timers of all processes."""

        def has_come() -> bool:
            self.clock.advance(1)
            return waiting.done()

        await until(has_come)
        return await waiting


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@asynccontextmanager
async def machine_in(folder: Path) -> AsyncIterator[Machine]:
    machine = Machine(folder)
    try:
        yield machine
    finally:
        await machine.one.close()
        await machine.two.close()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with machine_in(tmp_path) as machine:
        yield machine


# Leases.


@pytest.mark.requirement("MC-TRANS-04")
async def test_a_message_whose_lease_has_run_out_goes_to_another_process(machine: Machine) -> None:
    one, two = machine.one.bus, machine.two.bus
    await publish(one, "m1")
    (late,) = await taken(subscribed(one, ack_seconds=ACK))
    others = subscribed(two, ack_seconds=ACK)
    machine.run(ACK - 0.1)
    await publish(one, "m2")
    assert await taken_ids(others) == ["m2"]
    machine.run(0.1)
    (again,) = await taken(others)
    assert (again.message.id, again.attempt, again.fence) == ("m1", 2, late.fence + 1)
    assert not await one.ack(late)
    assert not await one.retry(late, 0.0, ERROR)
    assert not await one.give_up(late, ERROR)
    assert await two.ack(again)


async def test_a_message_stays_held_while_all_processes_sleep(machine: Machine) -> None:
    one, two = machine.one.bus, machine.two.bus
    machine.run(ACK)
    await publish(one, "m1")
    (held,) = await taken(subscribed(one, ack_seconds=ACK))
    machine.boot_clock.run(3 * ACK)
    others = subscribed(two, ack_seconds=ACK)
    await publish(one, "m2")
    assert await taken_ids(others) == ["m2"]
    machine.run(ACK - 1)
    await publish(one, "m3")
    assert await taken_ids(others) == ["m3"]
    machine.run(1)  # It does not renew although it is awake.
    (again,) = await taken(others)
    assert (again.message.id, again.fence) == ("m1", held.fence + 1)


async def test_a_message_stays_held_while_its_subscription_renews_it(machine: Machine) -> None:
    one, two = machine.one.bus, machine.two.bus
    await publish(one, "m1")
    (held,) = await taken(subscribed(one, ack_seconds=ACK))
    others = subscribed(two, ack_seconds=ACK)
    for round in range(1, 6):
        writes = machine.one.database.writes
        machine.run(ACK / 2)
        machine.clock.advance(ACK / 3)
        await until(lambda writes=writes: machine.one.database.writes > writes)
        await machine.one.database.write(lambda writing: None)  # Behind the renewal.
        await publish(one, f"n{round}")
        assert await taken_ids(others) == [f"n{round}"]
    assert await one.ack(held)


async def test_a_renewal_that_fails_is_tried_again(machine: Machine) -> None:
    one, database = machine.one.bus, machine.one.database
    await publish(one, "m1")
    (held,) = await taken(subscribed(one, ack_seconds=ACK))
    database.is_busy = True
    for _ in range(2):
        writes = database.writes
        machine.clock.advance(ACK / 3)
        await until(lambda writes=writes: database.writes > writes)
        await asyncio.sleep(0)
    database.is_busy = False
    machine.run(ACK - 1)
    writes = database.writes
    machine.clock.advance(ACK / 3)
    await until(lambda: database.writes > writes)
    await database.write(lambda writing: None)
    machine.run(ACK - 1)
    await publish(one, "m2")
    assert await taken_ids(subscribed(machine.two.bus)) == ["m2"]
    assert await one.ack(held)


async def test_a_message_of_a_process_that_has_ended_goes_to_another_which_looks_every_second(
    machine: Machine,
) -> None:
    await publish(machine.one.bus, "m1")
    await taken(subscribed(machine.one.bus))
    waiting = asyncio.create_task(taken(subscribed(machine.two.bus)))
    await asyncio.sleep(0)
    machine.one.end()
    (again,) = await machine.later(waiting)
    assert (again.message.id, again.attempt) == ("m1", 2)


async def test_messages_of_a_process_that_has_ended_are_taken_over_under_load_as_well(machine: Machine) -> None:
    two = machine.two.bus
    await publish(machine.one.bus, "m1", subject="jobs.z")
    await taken(subscribed(machine.one.bus, "jobs.z"))
    subscription, number = subscribed(two), 0
    machine.one.end()
    while True:
        number += 1
        await publish(two, f"n{number}", f"o{number}")
        (delivery,) = await taken(subscription)
        if delivery.message.id == "m1":
            break
        assert await two.ack(delivery)
        machine.clock.advance(0.1)
        assert number < 100


# Errors, and what a subscription costs while nothing happens.


async def test_a_subscription_that_waits_writes_nothing(machine: Machine) -> None:
    one, two = machine.one, machine.two
    subscription = subscribed(two.bus, most=1)
    await publish(one.bus, "a1", "a2")
    (held,) = await taken(subscription)
    await publish(one.bus, "b1", subject="other.b")
    waiting = asyncio.create_task(taken_ids(subscription))
    await publish(one.bus, "c1", subject="jobs.c")
    assert await waiting == ["c1"]
    waiting = asyncio.create_task(taken_ids(subscription))
    await two.bus.ack(held)
    assert await waiting == ["a2"]
    waiting = asyncio.create_task(taken_ids(subscription))
    await asyncio.sleep(0)
    writes = two.database.writes
    for number in range(20):  # The subject is at its limit, and other subjects change.
        machine.clock.advance(0.4)
        await publish(one.bus, f"b{number + 2}", subject="other.b")
        await two.database.read(lambda connection: None)
    assert two.database.writes - writes <= 1  # After each message it looks once whether there is another.
    await publish(one.bus, "d1", subject="jobs.d")
    assert await waiting == ["d1"]


async def test_a_subscription_looks_seldom_while_nobody_holds_anything(machine: Machine) -> None:
    one, two = machine.one, machine.two
    waiting = asyncio.create_task(taken_ids(subscribed(two.bus)))

    clock = machine.clock

    async def a_second() -> None:
        timers, due = clock.timers, clock.due
        clock.advance(1)
        await until(lambda: clock.timers - timers >= clock.due - due)  # What was due has set its next timer.

    async def looks() -> int:
        """In a minute."""
        before = clock.timers
        for _ in range(60):
            await a_second()
        return clock.timers - before

    assert await looks() <= 7
    other = subscribed(one.bus, "other.*")
    await publish(one.bus, "b1", subject="other.b")
    (held,) = await taken(other)
    await until(lambda: clock.timers > 0)
    await publish(two.bus, "c1", subject="other.c")
    assert await looks() > 14  # It may be held for too long.
    assert await one.bus.ack(held)
    await publish(one.bus, "m1")
    assert await waiting == ["m1"]


async def test_an_error_of_the_storage_ends_a_take_and_the_next_one_succeeds(machine: Machine) -> None:
    one = machine.one
    subscription = subscribed(one.bus)
    await publish(one.bus, "m1")
    one.database.is_busy = True
    with pytest.raises(StorageBusy):
        await taken(subscription)
    one.database.is_busy = False
    assert await taken_ids(subscription) == ["m1"]


async def test_a_message_that_was_claimed_and_nobody_knows_is_claimed_again(machine: Machine) -> None:
    one = machine.one
    subscription = subscribed(one.bus)
    await publish(one.bus, "m1", "m2")
    (first,) = await taken(subscription)
    one.database.is_uncertain = True
    machine.run(1)
    with pytest.raises(StorageUncertain):
        await taken(subscription)
    one.database.is_uncertain = False
    (second,) = await taken(subscription)
    assert (first.message.id, second.message.id, second.attempt) == ("m1", "m2", 1)
    assert [await one.bus.ack(each) for each in (first, second)] == [True, True]


async def test_a_message_of_a_cancelled_take_is_put_back_when_the_storage_works_again(machine: Machine) -> None:
    one, two = machine.one, machine.two
    subscription = subscribed(one.bus)
    await publish(one.bus, "m1")
    taking = asyncio.create_task(subscription.take())
    while one.database.writes < 2:  # noqa: ASYNC110 - no later: it is claimed, and not yet handed out
        await asyncio.sleep(0)
    one.database.is_busy = True
    taking.cancel()
    await until(lambda: one.database.writes > 2)
    waiting = asyncio.create_task(taken(subscribed(two.bus)))  # No sooner: it could claim the message first.
    one.database.is_busy = False
    (delivery,) = await machine.later(waiting)
    assert (delivery.message.id, delivery.attempt) == ("m1", 1)


# Transactions of callers.


async def test_what_is_done_in_a_transaction_that_fails_has_not_happened(machine: Machine) -> None:
    one = machine.one
    await publish(one.bus, "m1", "m2", "m3", "m4")
    first, second, third, fourth = await taken(subscribed(one.bus), 4)
    assert await one.bus.give_up(fourth, ERROR)

    def fail(transaction: Transaction) -> None:
        assert one.bus.publish_in(transaction, message("m5"))
        assert one.bus.ack_in(transaction, first)
        assert one.bus.retry_in(transaction, second, 0.0, ERROR)
        assert one.bus.give_up_in(transaction, third, ERROR)
        assert one.dead.redrive_in(transaction, fourth.number) is not None
        raise LookupError

    with pytest.raises(LookupError):
        await one.database.write(fail)
    assert [letter.number for letter in await one.dead.page(None, 10)] == [fourth.number]
    for delivery in (first, second, third):
        assert await one.bus.ack(delivery)
    assert await one.bus.publish(message("m5"))


async def test_what_is_done_in_a_transaction_wakes_those_that_wait_after_its_commit(machine: Machine) -> None:
    one = machine.one
    waiting = asyncio.create_task(taken(subscribed(one.bus)))
    await asyncio.sleep(0)
    assert await one.database.write(lambda writing: one.bus.publish_in(writing, message("m1")))
    (delivery,) = await waiting
    waiting = asyncio.create_task(taken(subscribed(one.bus)))
    await asyncio.sleep(0)
    assert await one.database.write(lambda writing: one.bus.retry_in(writing, delivery, 0.0, ERROR))
    (again,) = await waiting
    assert await one.database.write(lambda writing: one.bus.give_up_in(writing, again, ERROR))
    waiting = asyncio.create_task(taken(subscribed(one.bus)))
    await asyncio.sleep(0)
    assert await one.database.write(lambda writing: one.dead.redrive_in(writing, again.number)) is not None
    (redriven,) = await waiting
    assert await one.database.write(lambda writing: one.bus.ack_in(writing, redriven))
    assert not await one.database.write(lambda writing: one.bus.ack_in(writing, redriven))


async def test_a_caller_that_goes_on_after_a_full_bus_has_changed_nothing_of_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine.one
    monkeypatch.setattr(limits, "MOST_MESSAGES", 1)
    await publish(one.bus, "m1")
    (delivery,) = await taken(subscribed(one.bus))
    assert await one.bus.give_up(delivery, ERROR)
    await publish(one.bus, "m2")

    def go_on(transaction: Transaction) -> None:
        with pytest.raises(BusFull):
            one.bus.publish_in(transaction, message("m3"))
        with pytest.raises(BusFull):
            one.dead.redrive_in(transaction, delivery.number)

    await one.database.write(go_on)
    assert [letter.number for letter in await one.dead.page(None, 10)] == [delivery.number]
    assert await taken_ids(subscribed(one.bus)) == ["m2"]


# What is left in the tables, and what statements cost.


async def test_a_bus_whose_messages_are_settled_keeps_their_ids_alone(machine: Machine) -> None:
    one = machine.one
    await publish(one.bus, "m1", "m2")
    await publish(one.bus, "m3", subject="jobs.b")
    subscription = subscribed(one.bus)
    for delivery in await taken(subscription, 3):
        assert await one.bus.ack(delivery)
    with closing(sqlite3.connect(machine.folder / FILE_NAME)) as connection:
        for table, count in (("bus_message", 3), ("bus_body", 0), ("bus_subject", 0)):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (count,), table


def statements() -> list[str]:
    """Every statement of the bus that changes or looks for messages."""
    modules = (sqlite_bus_rows, sqlite_bus_claims, sqlite_dead_letters)
    found = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
    whole = sorted(each for each in found if each.startswith(("SELECT", "UPDATE", "INSERT")))
    parts = {
        sqlite_bus_rows.GIVE_BACK: f"WHERE {sqlite_bus_claims._IS_LATE}",
        sqlite_bus_rows.PUT_BACK: "WHERE state = 'held' AND subscription = ?",
        sqlite_dead_letters._LETTER: "AND m.number = ?",
    }
    return [f"{each} {parts.get(each, '')}" for each in whole]


async def test_no_statement_goes_through_all_messages(machine: Machine) -> None:
    await publish(machine.one.bus, "m1")
    examined = 0
    with closing(sqlite3.connect(machine.folder / FILE_NAME)) as connection:
        for statement in statements():
            named = defaultdict[str, None](lambda: None)
            values = named if ":" in statement else (None,) * statement.count("?")
            for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values):
                examined += 1
                # A partial index has only the messages in one state. Those that are held are few, and may be scanned.
                is_small = step.startswith("SCAN") and "bus_held" in step
                is_seek = step.startswith(
                    ("SEARCH", "USE TEMP", "LIST", "SCALAR", "CORRELATED SCALAR", "SCAN CONSTANT ROW")
                )
                assert is_seek or is_small, (statement, step)
    assert examined > 15


async def test_the_end_of_a_bus_leaves_no_process_and_no_lock_behind(tmp_path: Path) -> None:
    async with machine_in(tmp_path) as machine:
        await publish(machine.one.bus, "m1")
        await taken(subscribed(machine.one.bus))
        assert len(files_in(tmp_path / "locks")) == 1
    assert files_in(tmp_path / "locks") == []
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("SELECT count(*) FROM ledger_process").fetchone() == (0,)
        assert connection.execute("SELECT state, holder FROM bus_message").fetchall() == [("waiting", None)]


async def test_the_end_of_a_bus_ends_a_take_that_has_found_nothing(machine: Machine) -> None:
    waiting = asyncio.create_task(taken(subscribed(machine.one.bus)))
    await until(lambda: machine.clock.timers)  # It has looked, and will look again.
    await machine.one.bus.close()
    with pytest.raises(StorageClosed):
        await waiting


async def test_a_bus_that_was_not_used_makes_no_file(tmp_path: Path) -> None:
    async with machine_in(tmp_path):
        pass
    assert files_in(tmp_path) == []


async def test_a_thousand_wake_ups_at_once_are_few_claims(machine: Machine) -> None:
    one = machine.one
    subscription = subscribed(one.bus)
    waiting = asyncio.create_task(taken(subscription))
    await asyncio.sleep(0)
    many = [partial(message, f"m{number}") for number in range(1000)]
    await asyncio.gather(*(one.bus.publish(make()) for make in many))
    await waiting
    assert one.database.writes < 1000 + 20
