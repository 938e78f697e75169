"""The supervisor: parts start in order and stop in reverse, and loops that fail are restarted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NoReturn

import pytest

from dragoman.errors import ConfigError, PartFailed
from dragoman.parts.part import Contribution, Loop
from dragoman.parts.restarts import RestartLimit
from dragoman.parts.supervisor import Supervisor
from dragoman.telemetry.log import Entry, StructuredLogger
from dragoman.testing import ManualClock

LIMIT = RestartLimit(most=2, within=60.0, first_delay=1.0, longest_delay=10.0)


class Supervised:
    """A supervisor, its clock and its log."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.entries: list[Entry] = []
        self.supervisor = Supervisor(self.clock, StructuredLogger(self.entries.append, self.clock), LIMIT)

    def log(self, *facts: str) -> list[tuple[Any, ...]]:
        return [(each["message"], *(each[fact] for fact in facts)) for each in self.entries if isinstance(each, dict)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.supervisor.start()
        try:
            yield
        finally:
            await self.supervisor.stop(time.monotonic() + 5)


def part(name: str, seen: list[str], *, is_async: bool = True) -> Contribution:
    def note(what: str) -> Callable[[], Any]:
        async def later() -> None:
            await asyncio.sleep(0)
            seen.append(f"{name} {what}")

        return later if is_async else lambda: seen.append(f"{name} {what}")

    return Contribution(start=note("started"), stop=note("stopped"))


def failing(error: BaseException) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


async def settle() -> None:
    """Let tasks that are due run."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_parts_start_in_order_and_stop_in_reverse() -> None:
    seen: list[str] = []
    tested = Supervised()
    for name, is_async in (("one", True), ("two", False), ("three", True)):
        tested.supervisor.add(name, part(name, seen, is_async=is_async))
    tested.supervisor.add("nothing", Contribution())
    async with tested.running():
        assert seen == ["one started", "two started", "three started"]
        seen.clear()
    assert seen == ["three stopped", "two stopped", "one stopped"]
    assert tested.entries == []


@pytest.mark.parametrize("error", [OSError("no route"), SystemExit(3), asyncio.CancelledError()])
async def test_a_part_that_fails_to_start_is_named_and_only_those_before_it_are_stopped(error: BaseException) -> None:
    seen: list[str] = []
    tested = Supervised()
    tested.supervisor.add("one", part("one", seen))
    tested.supervisor.add("two", Contribution(start=failing(error), stop=lambda: seen.append("two stopped")))
    tested.supervisor.add("three", part("three", seen))
    with pytest.raises(PartFailed) as failed:
        await tested.supervisor.start()
    assert failed.value.part == "two"
    assert failed.value.__cause__ is error
    await tested.supervisor.stop(time.monotonic())
    assert seen == ["one started", "one stopped"]


@pytest.mark.parametrize("error", [OSError("no route"), SystemExit(3)])
async def test_a_part_that_fails_to_stop_is_logged_and_the_others_are_stopped(error: BaseException) -> None:
    seen: list[str] = []
    tested = Supervised()
    tested.supervisor.add("one", part("one", seen))
    tested.supervisor.add("two", Contribution(stop=failing(error)))
    async with tested.running():
        pass
    assert seen == ["one started", "one stopped"]
    assert tested.log("part") == [("the stop of a part failed", "two")]


async def test_parts_are_told_that_the_stop_begins_and_one_that_fails_at_that_keeps_nobody() -> None:
    seen: list[str] = []
    tested = Supervised()
    tested.supervisor.add("one", Contribution(drain=failing(OSError("no route"))))
    tested.supervisor.add("two", Contribution(drain=lambda: seen.append("two drains")))
    tested.supervisor.add("nothing", Contribution())
    async with tested.running():
        tested.supervisor.drain()
        assert seen == ["two drains"]
    assert tested.log("part") == [("a part failed to prepare for the stop", "one")]


async def test_a_part_that_does_not_stop_in_time_is_cancelled_and_the_others_are_stopped() -> None:
    seen: list[str] = []
    tested = Supervised()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    tested.supervisor.add("one", part("one", seen))
    tested.supervisor.add("two", Contribution(stop=hang))
    await tested.supervisor.start()
    await tested.supervisor.stop(time.monotonic())
    assert seen == ["one started", "cancelled", "one stopped"]
    assert tested.log("part", "timeoutMs") == [("the stop of a part took too long", "two", 500)]


async def test_two_parts_of_one_name_are_refused() -> None:
    tested = Supervised()
    tested.supervisor.add("mail", Contribution())
    with pytest.raises(ConfigError, match="two parts called 'mail'"):
        tested.supervisor.add("mail", Contribution())


async def test_a_loop_runs_from_the_start_of_its_part_until_before_its_stop() -> None:
    seen: list[str] = []
    tested = Supervised()

    async def run() -> None:
        seen.append("looping")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("loop ended")

    made = part("one", seen)
    tested.supervisor.add("one", Contribution(start=made.start, stop=made.stop, loops=(Loop("all", run),)))
    async with tested.running():
        await settle()
        assert seen == ["one started", "looping"]
    assert seen[2:] == ["loop ended", "one stopped"]


async def test_a_loop_that_fails_is_restarted_after_a_growing_delay_and_then_given_up() -> None:
    tested = Supervised()
    runs: list[float] = []

    async def run() -> None:
        runs.append(tested.clock.monotonic() - began)
        raise OSError("no route")

    began = tested.clock.monotonic()
    tested.supervisor.add("mail", Contribution(loops=(Loop("fetch", run), Loop("send", run))))
    tested.supervisor.add("quiet", Contribution())
    async with tested.running():
        await settle()
        assert runs == [0.0, 0.0]
        tested.clock.advance(0.9)
        await settle()
        assert runs == [0.0, 0.0]
        for seconds in (0.1, 2.0, 100.0):
            assert tested.supervisor.missing == ()
            tested.clock.advance(seconds)
            await settle()
            if len(runs) == 6:
                break
        assert runs == [0.0, 0.0, 1.0, 1.0, 3.0, 3.0]
        assert tested.supervisor.missing == ("mail",)
        tested.clock.advance(1000.0)
        await settle()
        assert len(runs) == 6
    restarted = [entry for entry in tested.log("part", "loop", "level") if "restarted" in entry[0]]
    assert restarted[:2] == [("a loop failed and is restarted", "mail", name, "warn") for name in ("fetch", "send")]
    assert restarted[-1] == ("a loop failed too often and is not restarted", "mail", "send", "error")


async def test_a_loop_that_fails_now_and_then_is_never_given_up() -> None:
    tested = Supervised()
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        raise OSError("no route")

    tested.supervisor.add("mail", Contribution(loops=(Loop("fetch", run),)))
    async with tested.running():
        for _ in range(20):
            await settle()
            tested.clock.advance(60.0)
        assert runs == 20
        assert tested.supervisor.missing == ()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_a_loop_cannot_end_the_process(error: BaseException) -> None:
    tested = Supervised()
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise error

    tested.supervisor.add("mail", Contribution(loops=(Loop("fetch", run),)))
    async with tested.running():
        await settle()
        tested.clock.advance(1.0)
        await settle()
        assert runs == 2
        tested.clock.advance(100.0)
        await settle()
        assert runs == 2, "a loop that returns has ended"
    assert tested.supervisor.missing == ()


async def test_a_loop_that_waits_for_its_restart_does_not_delay_the_stop() -> None:
    tested = Supervised()
    tested.supervisor.add("mail", Contribution(loops=(Loop("fetch", failing(OSError("no route"))),)))
    async with tested.running():
        await settle()
    assert [message for (message,) in tested.log()] == ["a loop failed and is restarted"]


async def test_a_part_is_stopped_even_if_its_loop_ignores_the_cancellation() -> None:
    seen: list[str] = []
    tested = Supervised()
    release = asyncio.Event()

    async def run() -> None:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()

    tested.supervisor.add("one", part("one", seen))
    tested.supervisor.add("two", Contribution(loops=(Loop("all", run),), stop=lambda: seen.append("two stopped")))
    await tested.supervisor.start()
    await settle()
    await tested.supervisor.stop(time.monotonic())
    assert seen == ["one started", "two stopped", "one stopped"]
    assert tested.log("part") == [("the loops of a part took too long to end", "two")]
    release.set()


async def test_a_loop_that_fails_at_its_end_is_not_restarted() -> None:
    seen: list[str] = []
    tested = Supervised()

    async def run() -> None:
        seen.append("looping")
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("no route")

    tested.supervisor.add("one", Contribution(loops=(Loop("all", run),), stop=lambda: seen.append("stopped")))
    async with tested.running():
        await settle()
    assert seen == ["looping", "stopped"]
    assert tested.log("part", "loop") == [("the end of a loop failed", "one", "all")]


@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_a_stop_ends_a_start_that_is_under_way(is_stubborn: bool) -> None:
    seen: list[str] = []
    tested = Supervised()
    release = asyncio.Event()

    async def start() -> None:
        seen.append("two starts")
        try:
            await release.wait()
        except asyncio.CancelledError:
            seen.append("two is cancelled")
            if not is_stubborn:
                raise

    tested.supervisor.add("one", part("one", seen))
    tested.supervisor.add("two", Contribution(start=start, stop=lambda: seen.append("two stopped")))
    tested.supervisor.add("three", part("three", seen))
    starting = asyncio.create_task(tested.supervisor.start())
    await settle()
    await tested.supervisor.stop(time.monotonic() + 5)
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert seen[:3] == ["one started", "two starts", "two is cancelled"]
    assert sorted(seen[3:]) == ["one stopped", *(["two stopped"] if is_stubborn else [])]
    assert tested.entries == []
