"""How often a process looks for what others do, counted by a clock that stands still, and what it is told."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from dragoman.adapters.sqlite_watch import SqliteWatch, Watcher
from tests.support.ledger_entries import event, held
from tests.support.ledger_processes import LEASE, BootClock, Process, processes
from tests.support.run_entries import task
from tests.support.waiting import PATIENCE

HOUR = 3600.0


class Watching:
    """The watch of a process, on the test's own thread and clock, and what it has told."""

    def __init__(self, process: Process, most_seconds: float = 0.25) -> None:
        self._own = lambda: process.process.id
        self.told: list[str] = []
        self.renewals: list[float] = []
        self.now = 100.0
        watcher = Watcher(
            changed=lambda: self.told.append("changed"),
            lost=lambda: self.told.append("lost"),
            is_alive=lambda: True,
            lease_seconds=LEASE,
            most_seconds=most_seconds,
        )
        self.watch = SqliteWatch(
            process.database.connect,
            lambda: (watcher,),
            self._own,
            process.process.seems_alive,
            self._renew,
            self._read_clock,
        )
        self._note_awake = process.process.note_awake

    def _read_clock(self) -> float:
        self._note_awake()
        return self.now

    def _renew(self, connection: sqlite3.Connection) -> None:
        self.renewals.append(self.now)
        connection.execute("UPDATE ledger_process SET until = until + 0.001 WHERE id = ?", (self._own(),))

    def looks_in(self, seconds: float) -> int:
        """Let so much time pass; how often it has looked."""
        end, looks = self.now + seconds, 0
        while (pause := self.watch.pause()) <= end - self.now:
            self.now += pause
            self.watch.look()
            looks += 1
        self.now = end
        return looks

    def news(self, seconds: float = 1.0) -> list[str]:
        """Everything that is told in that time."""
        self.looks_in(seconds)
        told, self.told = self.told, []
        return told


@asynccontextmanager
async def watching(
    folder: Path, most_seconds: float = 0.25
) -> AsyncIterator[tuple[Watching, Process, Process, BootClock]]:
    """A process that watches, once it has seen everything, and another one."""
    async with processes(folder, "s", "s") as ([one, two], clock):
        await one.ledger.accept(event("m0"))
        here = Watching(one, most_seconds)
        here.news(5)
        try:
            yield here, one, two, clock
        finally:
            here.watch.disconnect()


@pytest.mark.parametrize(("most_seconds", "looks"), [(0.25, 240), (0.5, 120)])
async def test_it_looks_seldom_while_nothing_happens(tmp_path: Path, most_seconds: float, looks: int) -> None:
    async with watching(tmp_path, most_seconds) as (here, *_):
        assert here.looks_in(60) == pytest.approx(looks, abs=1)
        assert here.told == []


async def test_it_looks_every_50_ms_for_a_second_after_a_change(tmp_path: Path) -> None:
    async with watching(tmp_path) as (here, _, two, _clock):
        await two.ledger.accept(event("m1"))
        assert here.looks_in(0.3) >= 1
        assert here.told == ["changed"]
        assert here.looks_in(0.5) == 10
        here.looks_in(1)
        assert here.looks_in(60) == pytest.approx(240, abs=1)
        assert here.told == ["changed"]


async def test_it_looks_every_50_ms_while_somebody_waits(tmp_path: Path) -> None:
    async with watching(tmp_path) as (here, *_):
        first, second = here.watch.look_often(), here.watch.look_often()
        assert here.looks_in(10) == pytest.approx(200, abs=1)
        first()
        first()  # Once more is no harm to others.
        assert here.looks_in(10) == pytest.approx(200, abs=1)
        second()
        assert here.looks_in(10) == pytest.approx(40, abs=1)


async def test_it_looks_every_50_ms_for_a_while_after_others_were_asked_for_something(tmp_path: Path) -> None:
    async with watching(tmp_path) as (here, *_):
        here.watch.hurry()
        assert here.looks_in(1) == pytest.approx(20, abs=1)
        assert here.looks_in(10) == pytest.approx(40, abs=1)


async def test_leases_that_others_renew_are_told_and_are_no_reason_to_look_more_often(tmp_path: Path) -> None:
    async with watching(tmp_path) as (here, _, two, clock):
        await held(two.ledger)
        here.news(5)
        for _ in range(10):
            clock.seconds += 1
            await two.database.write(two.process.enlist)
            assert here.looks_in(3) == pytest.approx(12, abs=1)
        assert here.told == ["changed"] * 10


async def test_a_change_that_follows_its_own_renewal_is_a_reason_to_look_more_often(tmp_path: Path) -> None:
    async with watching(tmp_path) as (here, one, two, _clock):
        await held(one.ledger)
        for _ in range(10):
            here.news(10)
            before = len(here.renewals)
            while len(here.renewals) == before:
                here.looks_in(0.25)
            await two.ledger.accept(event(f"m{here.now}"))
            assert here.looks_in(1) > 10


async def test_the_lease_is_renewed_three_times_in_its_time_and_in_the_same_moment_everywhere(tmp_path: Path) -> None:
    async with watching(tmp_path) as (here, one, *_):
        here.news(0.1)  # Some time in between.
        other = Watching(one)
        other.now = here.now + 0.05
        here.renewals.clear()
        here.looks_in(10 * LEASE)
        other.looks_in(10 * LEASE)
        other.watch.disconnect()
        assert len(here.renewals) == pytest.approx(30, abs=1)
        assert other.renewals[-20:] == pytest.approx(here.renewals[-20:])


async def test_the_end_of_another_process_is_told_once(tmp_path: Path) -> None:
    async with watching(tmp_path) as (here, _, two, _clock):
        await held(two.ledger)
        assert "lost" not in here.news()
        two.end()
        assert here.news() == ["lost"]
        assert here.news(60) == []


async def test_a_process_that_falls_silent_is_told_again_when_it_was_heard_meanwhile(tmp_path: Path) -> None:
    async with watching(tmp_path) as (here, one, two, clock):
        await held(two.ledger)
        here.news()
        clock.run(LEASE, one.process)
        assert here.news() == ["lost"]
        await two.database.write(two.process.enlist)
        assert here.news() == ["changed"]
        clock.run(LEASE, one.process)
        assert here.news() == ["lost"]


async def test_a_process_that_slept_as_well_is_told_of_silence_only_when_it_could_have_heard_others(
    tmp_path: Path,
) -> None:
    async with watching(tmp_path) as (here, _, two, clock):
        clock.run(LEASE)
        await held(two.ledger)
        here.news()
        clock.run(3 * LEASE)
        assert here.news() == []
        for _ in range(3):
            clock.seconds += LEASE / 4
            assert here.news() == []  # To look is to be awake.
        clock.seconds += LEASE / 4
        assert here.news() == ["lost"]


async def test_an_agent_that_is_given_back_is_told_each_time(tmp_path: Path) -> None:
    async with watching(tmp_path) as (here, _, two, _clock):
        for _ in range(2):
            await held(two.ledger)
            await two.ledger.release(["a"])
            assert here.news().count("lost") == 1


async def test_a_run_whose_process_somebody_else_has_removed_is_told(tmp_path: Path) -> None:
    async with watching(tmp_path) as (here, _, two, _clock):
        await two.runs.add(task(begins=True))
        here.news()
        await two.database.write(lambda writing: writing.execute("DELETE FROM ledger_process").rowcount)
        assert here.news().count("lost") == 1
        await two.database.write(two.process.enlist)


async def test_a_database_that_cannot_be_read_is_looked_at_again(tmp_path: Path) -> None:
    async with watching(tmp_path) as (here, *_):
        here.watch.disconnect()
        with closing(sqlite3.connect(tmp_path / "dragoman.db", isolation_level=None)) as other:
            (form,) = other.execute("PRAGMA user_version").fetchone()
            other.execute(f"PRAGMA user_version = {form + 1}")
            here.looks_in(1)
            assert here.told == []
            other.execute(f"PRAGMA user_version = {form}")
        assert "changed" in here.news()


@pytest.mark.parametrize("call", [SqliteWatch.look_often, SqliteWatch.hurry])
async def test_who_begins_to_wait_wakes_a_watch_that_sleeps(
    tmp_path: Path, call: Callable[[SqliteWatch], object]
) -> None:
    async with processes(tmp_path, "s") as ([one], _):
        loop, changed, asks_to_sleep = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def watchers() -> tuple[Watcher, ...]:
            loop.call_soon_threadsafe(asks_to_sleep.set)
            return (watcher,)

        watcher = Watcher(
            changed=lambda: loop.call_soon_threadsafe(changed.set),
            lost=lambda: None,
            is_alive=lambda: True,
            lease_seconds=3 * HOUR,
            most_seconds=HOUR,
        )
        watch = SqliteWatch(one.database.connect, watchers, lambda: None, lambda *_: True, lambda _: None)
        watch.start()
        try:
            async with asyncio.timeout(PATIENCE):
                await asks_to_sleep.wait()
                call(watch)
                await changed.wait()
        finally:
            watch.stop()
