"""Sync handlers: threads of our own, so that one that hangs delays neither an answer nor anybody else."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

import pytest

import dragoman
from dragoman import ToolContext, tool
from dragoman.calls.threads import DaemonExecutor, Jobs, Threads
from dragoman.testing import ManualClock, open_server
from tests.support.answers import error_in
from tests.support.calls import Hung, answers, begin, happened
from tests.support.waiting import PATIENCE

colour: ContextVar[str] = ContextVar("colour", default="none")


@pytest.mark.requirement("FND-TIME-02", "FND-TIME-04", "FND-TIME-11")
async def test_client_of_a_hung_thread_is_answered_at_the_deadline_and_the_slot_waits_for_the_thread() -> None:
    clock, hung = ManualClock(), Hung(timeout_ms=50)
    async with open_server([hung.tool], clock=clock) as server:
        client = await server.client()
        call = begin(client, "hang")
        await happened(hung.begun)
        clock.advance(0.1)
        (answer,) = answers(client, call)
        assert error_in(answer["result"])["code"] == "TIMEOUT"
        assert (hung.finished.is_set(), server.runtime.slots.in_use) == (False, 1)
        hung.release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert (hung.finished.is_set(), server.runtime.slots.in_use) == (True, 0)
        assert answers(client, call) == [answer]
        assert [record["outcome"] for record in server.records] == ["late_completed"]


@pytest.mark.requirement("FND-HEALTH-05")
async def test_health_answers_while_every_slot_is_held_by_a_hung_thread() -> None:
    clock = ManualClock()
    hung = [Hung(f"hang{number}", timeout_ms=50) for number in range(3)]
    async with open_server(
        [one.tool for one in hung], {"resources": {"maxConcurrentExecutions": 3}}, clock=clock
    ) as server:
        client = await server.client()
        for number, one in enumerate(hung):
            begin(client, f"hang{number}")
            await happened(one.begun)
        clock.advance(0.1)
        for _ in range(3):
            report = json.loads((await client.call_tool("health"))["content"][0]["text"])
            assert (report["status"], report["resources"]["concurrentExecutions"]) == ("unhealthy", 3)
        for one in hung:
            one.release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        report = json.loads((await client.call_tool("health"))["content"][0]["text"])
        assert (report["status"], report["resources"]["concurrentExecutions"]) == ("healthy", 0)


async def test_loop_goes_on_serving_while_a_thread_blocks() -> None:
    hung = Hung()
    async with open_server([hung.tool]) as server:
        client = await server.client()
        call = begin(client, "hang")
        await happened(hung.begun)
        assert (await client.request("ping"))["result"] == {}
        hung.release.set()
        assert (await client.answer(call))["result"]["content"] == [{"type": "text", "text": "done"}]


async def test_sync_handlers_run_side_by_side_on_daemon_threads_and_no_more_of_them_than_slots() -> None:
    together = threading.Barrier(3)
    seen: set[threading.Thread] = set()

    @tool
    def meet() -> bool:
        seen.add(threading.current_thread())
        together.wait(PATIENCE)
        return threading.current_thread().daemon

    async with dragoman.open([meet], {"resources": {"maxConcurrentExecutions": 3}}) as runtime:
        for _ in range(5):
            outcomes = await asyncio.gather(*(runtime.call("meet") for _ in range(3)))
            assert [outcome.unwrap() for outcome in outcomes] == [True, True, True]
    assert len(seen) == 3
    assert threading.current_thread() not in seen


async def test_thread_that_hangs_does_not_hold_up_the_next_call_after_it_has_served_one() -> None:
    hung = Hung()

    @tool
    def quick() -> str:
        return "done"

    async with dragoman.open([hung.tool, quick]) as runtime:
        assert (await runtime.call("quick")).unwrap() == "done"
        hanging = asyncio.ensure_future(runtime.call("hang"))
        await happened(hung.begun)
        async with asyncio.timeout(PATIENCE):
            assert (await runtime.call("quick")).unwrap() == "done"
        hung.release.set()
        assert (await hanging).unwrap() == "done"


async def test_one_thread_serves_calls_that_follow_each_other() -> None:
    @tool
    def where() -> str:
        return threading.current_thread().name

    async with dragoman.open([where]) as runtime:
        names = {(await runtime.call("where")).unwrap() for _ in range(10)}
    assert len(names) == 1


async def test_idle_threads_end_with_the_runtime() -> None:
    @tool
    def who() -> None:
        threads.append(threading.current_thread())

    threads: list[threading.Thread] = []
    async with dragoman.open([who]) as runtime:
        await runtime.call("who")
    await asyncio.to_thread(threads[0].join, PATIENCE)
    assert not threads[0].is_alive()


async def test_context_variables_of_the_caller_reach_a_sync_handler_and_its_own_stay_with_it() -> None:
    @tool
    def paint() -> str:
        before = colour.get()
        colour.set("blue")
        return before

    async with dragoman.open([paint]) as runtime:
        colour.set("red")
        assert [(await runtime.call("paint")).unwrap() for _ in range(2)] == ["red", "red"]
        assert colour.get() == "red"


@pytest.mark.requirement("FND-TIME-03")
async def test_thread_can_poll_its_token() -> None:
    clock = ManualClock()
    begun, pause = threading.Event(), threading.Event()

    @tool(timeout_ms=50)
    def poll(context: ToolContext) -> None:
        begun.set()
        for _ in range(5000):
            context.cancellation.raise_if_set()
            pause.wait(0.001)

    async with open_server([poll], clock=clock) as server:
        begin(await server.client(), "poll")
        await happened(begun)
        clock.advance(0.1)
        assert await server.runtime.runner.drain(PATIENCE)
        assert [record["outcome"] for record in server.records] == ["late_completed"]


async def test_threads_give_back_values_and_exceptions() -> None:
    threads = Threads()

    def fail() -> None:
        raise LookupError("not here")

    assert await threads.run(lambda: 6 * 7) == 42
    with pytest.raises(LookupError, match="not here"):
        await threads.run(fail)
    threads.stop()


async def test_thread_whose_caller_gave_up_goes_on_and_is_used_again() -> None:
    threads = Threads()
    begun, release = threading.Event(), threading.Event()

    def block() -> str:
        begun.set()
        release.wait(PATIENCE)
        return threading.current_thread().name

    waiting = asyncio.ensure_future(threads.run(block))
    await happened(begun)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    release.set()
    assert waiting.cancelled()
    assert (await threads.run(block)).startswith("dragoman-tool-")
    threads.stop()


@contextmanager
def at_each(called: Callable[[str, str], None]) -> Iterator[None]:
    """Say before and after this thread calls a function of the interpreter: the event, and the function's name."""

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event in ("c_call", "c_return", "c_exception"):
            called(event, getattr(argument, "__name__", ""))

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


def on_another_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_jobs_that_are_added_together_wake_one_thread() -> None:
    jobs, calls = Jobs[int](), Counter[tuple[str, str]]()
    with at_each(lambda event, name: calls.update([(event, name)])):
        for number in range(32):
            jobs.add(number)
        taken = [jobs.take() for _ in range(32)]
    assert taken == [*range(32)]
    assert (calls["c_call", "release"], calls["c_call", "acquire"]) == (1, 0)


def test_thread_that_is_woken_finds_the_job_however_fast_it_is() -> None:
    jobs, taken = Jobs[str](), list[str]()

    def meanwhile(event: str, name: str) -> None:
        if (event, name) == ("c_return", "release"):
            on_another_thread(lambda: taken.append(jobs.take()))

    with at_each(meanwhile):
        jobs.add("now")
    assert taken == ["now"]


def test_two_threads_can_add_a_job_at_the_same_time() -> None:
    jobs = Jobs[str]()

    def meanwhile(event: str, name: str) -> None:
        if (event, name) == ("c_call", "release"):
            on_another_thread(lambda: jobs.add("theirs"))

    with at_each(meanwhile):
        jobs.add("mine")
    assert [jobs.take(), jobs.take()] == ["mine", "theirs"]


async def test_the_loops_own_threads_are_daemons_as_many_as_it_was_given_and_the_rest_wait_their_turn() -> None:
    executor = DaemonExecutor(2)
    begun, release = threading.Semaphore(0), threading.Event()

    def block() -> threading.Thread:
        begun.release()
        release.wait(PATIENCE)
        return threading.current_thread()

    futures = [executor.submit(block) for _ in range(5)]
    assert begun.acquire(timeout=PATIENCE)
    assert begun.acquire(timeout=PATIENCE)
    assert not begun.acquire(timeout=0.05)
    release.set()
    threads = {future.result(PATIENCE) for future in futures}
    assert len(threads) == 2
    assert all(thread.daemon for thread in threads)
    for _ in range(5):
        assert executor.submit(threading.current_thread).result(PATIENCE) in threads
    executor.shutdown()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)


async def test_the_loops_own_threads_give_back_exceptions_and_pass_over_what_was_cancelled() -> None:
    executor = DaemonExecutor(1)
    release = threading.Event()
    first = executor.submit(release.wait, PATIENCE)
    second = executor.submit(release.set)
    assert second.cancel()
    release.set()
    assert first.result(PATIENCE)
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 1, 0).result(PATIENCE)
    executor.shutdown()


async def test_the_loops_own_threads_run_in_the_context_of_the_call() -> None:
    executor = DaemonExecutor(1)
    colour.set("green")
    assert await asyncio.get_running_loop().run_in_executor(executor, colour.get) == "green"
    executor.shutdown()


@pytest.mark.parametrize("error", [StopIteration(), SystemExit(3), KeyboardInterrupt()])
async def test_what_means_something_else_on_the_loop_is_a_failure_there(error: BaseException) -> None:
    def fail() -> None:
        raise error

    executor = DaemonExecutor(1)
    waiting = asyncio.get_running_loop().run_in_executor(executor, fail)
    with pytest.raises(RuntimeError, match=f"the function raised {type(error).__name__}"):
        await asyncio.wait_for(waiting, PATIENCE)
    executor.shutdown()


@pytest.mark.slow
def test_a_function_on_a_thread_of_the_loop_cannot_keep_the_process() -> None:
    code = (
        "import asyncio, threading\n"
        "from dragoman.process.loop import new_event_loop\n"
        "loop = new_event_loop(3)\n"
        "async def main():\n"
        "    asyncio.ensure_future(asyncio.to_thread(threading.Event().wait))\n"
        "    print(await asyncio.to_thread(lambda: 'free'))\n"
        "loop.run_until_complete(main())\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, b"free\n")
