"""Two servers on one data directory whose machine sleeps: each finds the other's lease over, and takes nothing over."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from chaos.http_served import HttpServed
from chaos.run_tasks import TASKS_FILE, tasks_found_in
from chaos.servers import Gone, Place
from chaos.task_checks import problems_with_tasks
from chaos.tasks import KeyedCall, final_answer
from dragoman.calls.repeats import IDEMPOTENCY_KEY
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

SHORT_LEASE, LONG_LEASE = 1.0, 3.0
TAKEN_OVER = {
    "runs were taken over from a process that has ended",
    "an agent was taken over from a process that has ended",
    "a run belongs to another process by now",
}


@asynccontextmanager
async def serving(place: Place, *arguments: str) -> AsyncIterator[HttpServed]:
    """A server that has started. Left running at the end of the block, it is killed."""
    server = await HttpServed.start(place, *arguments)
    try:
        async with asyncio.timeout(PATIENCE):
            while not await is_up(server):  # noqa: ASYNC110 - it has yet to listen
                await asyncio.sleep(0.02)
        yield server
    finally:
        if server.process.returncode is None:
            server.process.send_signal(signal.SIGCONT)
            await server.end(signal.SIGKILL)


async def is_up(server: HttpServed) -> bool:
    try:
        return "result" in await server.ask("tools/list", {}, {})
    except Gone:
        return False


async def outcome(server: HttpServed, call: KeyedCall) -> Any:
    """The outcome of a call with a key."""
    params = {"name": call.tool, "arguments": {"item": call.item}}
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = final_answer(await server.ask("tools/call", params, {IDEMPOTENCY_KEY: call.key}))
            if answer is not None:
                call.answers.append(answer)
                return answer


async def until_later(seconds: float) -> None:
    """Leases are measured by the machine's own clock."""
    end = time.monotonic() + seconds
    await until(lambda: time.monotonic() >= end)


async def test_calls_that_ran_when_all_servers_fell_asleep_go_on_and_are_not_taken_over(tmp_path: Path) -> None:
    place = Place(tmp_path, {"aacp.lease_ms": int(LONG_LEASE * 1000)}, TASKS_FILE)
    calls = [KeyedCall(f"key-of-16-letters-{tool}", tool, f"item {tool}") for tool in ("once", "again")]
    async with serving(place, "--point", "handler ended", "--stops") as one, serving(place) as two:
        first = [asyncio.create_task(outcome(one, call)) for call in calls]  # It stops itself, between two writes.
        await until(lambda: psutil.Process(one.process.pid).status() == psutil.STATUS_STOPPED)
        repeats = [asyncio.create_task(outcome(two, call)) for call in calls]
        two.process.send_signal(signal.SIGSTOP)
        await until_later(1.5 * LONG_LEASE)
        two.process.send_signal(signal.SIGCONT)
        await until_later(LONG_LEASE / 3)  # It looks twice, and sees that the other one's lease is over.
        one.process.send_signal(signal.SIGCONT)
        tokens = await asyncio.gather(*first)
        assert await asyncio.gather(*repeats) == tokens
        assert all(isinstance(token, str) for token in tokens)
        assert not TAKEN_OVER & (one.logged().keys() | two.logged().keys())
    found, _ = await tasks_found_in(place, calls, [])
    assert problems_with_tasks(found) == []
    assert {item: len(tokens) for item, tokens in found.acted.items()} == {"item once": 1, "item again": 1}


@pytest.mark.nightly
@pytest.mark.parametrize("tool", ["once", "again"])
async def test_a_result_that_comes_after_a_stop_of_its_server_alone_is_the_one_that_is_answered(
    tmp_path: Path, tool: str
) -> None:
    place = Place(tmp_path, {"aacp.lease_ms": int(SHORT_LEASE * 1000)}, TASKS_FILE)
    call = KeyedCall("key-of-16-letters", tool, "item 1")
    async with serving(place, "--point", "handler ended", "--stops") as stopped, serving(place) as other:
        first = asyncio.create_task(outcome(stopped, call))
        await until(lambda: psutil.Process(stopped.process.pid).status() == psutil.STATUS_STOPPED)
        await until(lambda: other.logged()["runs were taken over from a process that has ended"] == 1)
        stopped.process.send_signal(signal.SIGCONT)
        token = await first
        assert [await outcome(server, call) for server in (stopped, other)] == [token] * 2
    found, _ = await tasks_found_in(place, [call], [])
    assert problems_with_tasks(found) == []
    assert found.acted == {"item 1": [token]}
