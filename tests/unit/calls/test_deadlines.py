"""Deadlines: the client is answered on time, the handler is asked to stop, and the slot waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman import Cancellation, ToolContext, raise_if_cancelled, tool
from dragoman.calls.call import COMPLETION_MEANINGS, Completion
from dragoman.errors import Aborted
from dragoman.testing import ManualClock, SequentialIds, open_server
from dragoman.tools.settings import ToolsConfig
from dragoman.tools.tool import tool_of
from tests.support.answers import error_in
from tests.support.calls import Held, answers, begin
from tests.support.waiting import PATIENCE


@pytest.mark.requirement("FND-TIME-01")
@pytest.mark.parametrize(
    ("config", "own", "expected"),
    [
        ({}, None, 30_000),
        ({"tools": {"defaultTimeoutMs": 2000}}, None, 2000),
        ({"tools": {"defaultTimeoutMs": 2000}}, 500, 500),
        ({"tools": {"defaultTimeoutMs": 2000}}, 5000, 5000),
        ({"timeouts": {"tool_overrides": {"hold": 700}}}, 500, 700),
        ({"timeouts": {"tool_overrides": {"other": 700}}}, 500, 500),
    ],
)
async def test_setting_for_the_tool_wins_over_its_own_timeout_and_that_over_the_default(
    config: dict[str, Any], own: int | None, expected: int
) -> None:
    clock, held = ManualClock(), Held(timeout_ms=own)
    async with open_server([held.tool], config, clock=clock) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        clock.advance(expected / 1000 - 0.01)
        early = answers(client, call)
        clock.advance(0.02)
        on_time = answers(client, call)
        held.release.set()
    assert early == []
    setting = "tools.default_timeout_ms" if own is None else "timeouts.tool_overrides.hold"
    assert error_in(on_time[0]["result"])["details"] == {"timeoutMs": expected, "setting": setting}


@pytest.mark.requirement("FND-TIME-01")
def test_default_timeout_is_thirty_seconds() -> None:
    assert ToolsConfig().default_timeout_ms == 30_000


@pytest.mark.requirement("FND-TIME-02", "FND-CALL-10")
async def test_client_is_answered_at_the_deadline_while_the_handler_runs_on() -> None:
    clock, held = ManualClock(), Held(timeout_ms=50)
    async with open_server([held.tool], clock=clock, ids=SequentialIds()) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        clock.advance(1)
        (answer,) = answers(client, call)  # Without another turn of the loop.
        assert held.finished == 0
        assert [token.is_set() for token in held.tokens] == [True]
        held.release.set()
    assert error_in(answer["result"]) == {
        "code": "TIMEOUT",
        "message": "No result within 50 ms",
        "details": {"timeoutMs": 50, "setting": "timeouts.tool_overrides.hold"},
        "runId": "run-1",
        "correlationId": "corr-1",
    }
    assert answer["result"]["_meta"] == {
        "dragoman/runId": "run-1",
        "dragoman/correlationId": "corr-1",
        "dragoman/durationMs": 50.0,
    }


@pytest.mark.requirement("FND-TIME-03")
async def test_token_is_unset_in_time_and_set_at_the_deadline() -> None:
    clock, held = ManualClock(), Held(timeout_ms=50)
    async with open_server([held.tool], clock=clock) as server:
        begin(await server.client(), "hold")
        await held.begun.wait()
        (token,) = held.tokens
        clock.advance(0.04)
        in_time = (token.is_set(), token.reason)
        clock.advance(0.02)
        late = (token.is_set(), token.reason)
        held.release.set()
    assert (in_time, late) == ((False, None), (True, "deadline"))


@pytest.mark.requirement("FND-TIME-03", "FND-TIME-10")
@pytest.mark.parametrize("way", ["poll", "wait", "raise", "helper"])
async def test_handler_can_poll_its_token_wait_for_it_and_have_it_raise(way: str) -> None:
    clock = ManualClock()
    begun, go_on = asyncio.Event(), asyncio.Event()
    stopped: list[str] = []

    @tool(timeout_ms=50)
    async def work(context: ToolContext) -> None:
        token = context.cancellation
        raise_if_cancelled(token)
        begun.set()
        try:
            if way == "wait":
                await token.wait()
            else:
                await go_on.wait()
                if way == "raise":
                    token.raise_if_set()
                elif way == "helper":
                    raise_if_cancelled(token)
                elif not token.is_set():
                    return
            stopped.append("saw it")
        except Aborted as error:
            stopped.append(f"{error.code}: {error.reason}")
            raise

    async with open_server([work], clock=clock) as server:
        begin(await server.client(), "work")
        await begun.wait()
        clock.advance(0.1)
        go_on.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert [record["outcome"] for record in server.records] == ["late_completed"]
    assert stopped == ["ABORTED: deadline" if way in ("raise", "helper") else "saw it"]


@pytest.mark.requirement("FND-TIME-10")
async def test_token_keeps_its_first_reason_and_wakes_everybody_who_waits() -> None:
    token = Cancellation()
    raise_if_cancelled(token)
    waiting = [asyncio.ensure_future(token.wait()) for _ in range(3)]
    given_up = asyncio.ensure_future(token.wait())
    await asyncio.sleep(0)
    given_up.cancel()
    token.set("deadline")
    token.set("disconnect")
    await asyncio.gather(*waiting)
    await token.wait()
    with pytest.raises(Aborted) as caught:
        raise_if_cancelled(token)
    assert (caught.value.code, caught.value.reason) == ("ABORTED", "deadline")


@pytest.mark.requirement("FND-TIME-04")
@pytest.mark.parametrize("fails", [False, True])
async def test_slot_stays_taken_after_a_timeout_until_the_handler_ends(fails: bool) -> None:
    clock = ManualClock()
    begun, release = asyncio.Event(), asyncio.Event()

    @tool(timeout_ms=50)
    async def hold() -> None:
        begun.set()
        await release.wait()
        if fails:
            raise RuntimeError

    async with open_server([hold], {"resources": {"maxConcurrentExecutions": 1}}, clock=clock) as server:
        client = await server.client()
        begin(client, "hold")
        await begun.wait()
        clock.advance(0.1)
        assert server.runtime.slots.get_telemetry().concurrent_executions == 1
        assert error_in(await client.call_tool("hold"))["code"] == "RESOURCE_EXHAUSTED"
        release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert server.runtime.slots.get_telemetry().concurrent_executions == 0
        assert (await client.call_tool("hold"))["isError"] is fails


def near_timeout(name: str, duration_ms: float, timeout_ms: int, ratio: str) -> dict[str, Any]:
    """What the gate `timeout-audit` puts into a record."""
    audit = {"event": "near_timeout", "tool": name, "durationMs": duration_ms, "timeoutMs": timeout_ms, "ratio": ratio}
    return {"gate": "timeout-audit", "decision": "audit", "audit": audit}


@pytest.mark.requirement("FND-TIME-05", "FND-TIME-11")
async def test_late_end_is_recorded_once_and_its_result_is_discarded() -> None:
    clock, held = ManualClock(), Held(timeout_ms=50)
    async with open_server([held.tool], clock=clock, ids=SequentialIds()) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        clock.advance(0.2)
        assert server.records == []  # The deadline is a warning; the record is written when the handler ends.
        held.release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert held.finished == 1
        assert len(answers(client, call)) == 1
        assert server.log == [
            {
                "timestamp": "2024-01-15T10:30:00.050Z",
                "level": "warn",
                "message": "tool call passed its deadline",
                "runId": "run-1",
                "correlationId": "corr-1",
                "toolName": "hold",
            },
            {
                "timestamp": "2024-01-15T10:30:00.200Z",
                "level": "warn",
                "message": "tool call completed",
                "runId": "run-1",
                "correlationId": "corr-1",
                "toolName": "hold",
                "durationMs": 200.0,
                "outcome": "late_completed",
                "payloadBytes": 2,
                "guards": [near_timeout("hold", 200.0, 50, "400.0%")],
            },
        ]


@pytest.mark.requirement("FND-TIME-11")
async def test_result_that_comes_too_late_is_not_even_written() -> None:
    clock, written = ManualClock(), []
    begun, release = asyncio.Event(), asyncio.Event()

    class Model:
        def model_dump(self, **options: Any) -> Any:
            written.append(self)
            return {}

    @tool(timeout_ms=50)
    async def hold() -> Any:
        begun.set()
        await release.wait()
        return Model()

    async with open_server([hold], clock=clock) as server:
        client = await server.client()
        begin(client, "hold")
        await begun.wait()
        clock.advance(0.1)
        release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert written == []
        assert (await client.call_tool("hold"))["content"] == [{"type": "text", "text": "{}"}]
        assert len(written) == 1


@pytest.mark.requirement("FND-TIME-06")
def test_outcomes_are_these_seven_and_each_has_a_meaning() -> None:
    assert {completion.value for completion in Completion} == {
        "success",
        "tool_error",
        "timeout",
        "late_completed",
        "aborted",
        "disconnected_completed",
        "protocol_error",
    }
    assert set(COMPLETION_MEANINGS) == set(Completion)


@pytest.mark.requirement("FND-TIME-09")
async def test_call_that_ends_in_time_is_never_timed_out_afterwards() -> None:
    clock, held = ManualClock(), Held(timeout_ms=50)
    async with open_server([held.tool], clock=clock) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        clock.advance(0.04)
        held.release.set()
        result = (await client.answer(call))["result"]
        clock.advance(60)
        await asyncio.sleep(0)
        assert result["isError"] is False
        assert len(answers(client, call)) == 1
        assert [token.is_set() for token in held.tokens] == [False]
        assert [entry["message"] for entry in server.log] == ["tool call completed"]


@pytest.mark.requirement("PRD-METRIC-02")
async def test_each_call_has_its_own_deadline_whatever_others_do() -> None:
    clock = ManualClock()
    slow, quick, brief = Held("slow", timeout_ms=100), Held("quick", timeout_ms=100), Held("brief", timeout_ms=30)
    async with open_server([slow.tool, quick.tool, brief.tool], clock=clock) as server:
        client = await server.client()
        calls = {}
        for held in (quick, slow, brief):  # One after the other, 10 ms apart.
            calls[held] = begin(client, tool_of(held.tool).name)
            await held.begun.wait()
            clock.advance(0.01)
        quick.release.set()
        await client.answer(calls[quick])
        seen = []
        for until in (0.045, 0.055, 0.105, 0.115):
            clock.advance(until - clock.monotonic())
            seen.append([len(answers(client, calls[held])) for held in (slow, brief)])
        assert seen == [[0, 0], [0, 1], [0, 1], [1, 1]]
        slow.release.set()
        brief.release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert sorted(record["outcome"] for record in server.records) == ["late_completed", "late_completed", "success"]


async def test_deadline_starts_with_the_handler_on_the_real_clock_too() -> None:
    held = Held(timeout_ms=20)
    async with open_server([held.tool]) as server:
        client = await server.client()
        async with asyncio.timeout(PATIENCE):
            error = error_in(await client.call_tool("hold"))
        held.release.set()
    assert error["code"] == "TIMEOUT"


# A handler runs in a task like any other.


async def test_timeout_of_the_handlers_own_is_its_own_affair() -> None:
    @tool
    async def patient() -> str:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return f"gave up, {task.cancelling()} cancellations pending"
        return "never"

    async with open_server([patient]) as server:
        result = await (await server.client()).call_tool("patient")
    assert result["content"] == [{"type": "text", "text": "gave up, 0 cancellations pending"}]


async def test_timeout_that_a_handler_lets_out_is_its_failure_and_not_the_deadline() -> None:
    @tool
    async def impatient() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    async with open_server([impatient]) as server:
        error = error_in(await (await server.client()).call_tool("impatient"))
        assert [record["outcome"] for record in server.records] == ["tool_error"]
    assert (error["code"], error["details"]) == ("INTERNAL", {"reason": "handler_exception"})


async def test_task_group_inside_a_handler_behaves() -> None:
    async def one(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def fail() -> None:
        raise ValueError("one of them")

    @tool
    async def gather() -> list[int]:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                group.create_task(asyncio.Event().wait())
        except* ValueError:
            pass
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(n)) for n in range(3)]
        return [task.result() for task in tasks]

    async with open_server([gather]) as server:
        result = await (await server.client()).call_tool("gather")
    assert result["content"] == [{"type": "text", "text": "[0,1,2]"}]
