"""How much of the server one caller, or one tool, may have: slots and calls a minute."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman import tool
from dragoman.access.callers import Caller
from dragoman.calls.rates import Rate
from dragoman.testing import ManualClock, open_server
from tests.support.answers import error_in
from tests.support.calls import Held, begin
from tests.support.waiting import PATIENCE

ADA, BEN = Caller("ada"), Caller("ben")


@tool
async def ping() -> str:
    return "pong"


@tool
async def pong() -> str:
    return "ping"


# Slots


async def test_caller_has_no_more_slots_than_its_share_and_others_have_theirs() -> None:
    held = Held()
    config = {"resources": {"max_concurrent_executions": 10, "max_concurrent_per_caller": 2}}
    async with open_server([held.tool, ping], config) as server:
        ada, ben = await server.client(ADA), await server.client(BEN)
        running = [begin(ada, "hold"), begin(ada, "hold")]
        error = error_in(await ada.call_tool("ping"))
        assert error["code"] == "RESOURCE_EXHAUSTED"
        assert error["message"] == "All 2 slots of this caller are taken"
        setting = "resources.max_concurrent_per_caller"
        facts = {"reason": "no_free_slot", "limit": 2, "retryable": True, "retryAfterMs": 100, "setting": setting}
        assert error["details"] == facts
        assert (await ben.call_tool("ping"))["isError"] is False
        assert (await ada.call_tool("health"))["isError"] is False
        held.release.set()
        for call in running:
            await ada.answer(call)
        assert (await ada.call_tool("ping"))["isError"] is False
        assert server.runtime.slots.in_use == 0


async def test_tool_has_no_more_slots_than_its_share() -> None:
    held = Held()
    config = {"limits": {"tools": {"hold": {"max_concurrent": 1}}}}
    async with open_server([held.tool, ping], config) as server:
        ada, ben = await server.client(ADA), await server.client(BEN)
        running = begin(ada, "hold")
        error = error_in(await ben.call_tool("hold"))
        assert error["message"] == "All 1 slots for 'hold' are taken"
        assert (await ben.call_tool("ping"))["isError"] is False
        held.release.set()
        await ada.answer(running)
        assert (await ben.call_tool("hold"))["isError"] is False


async def test_share_comes_back_when_the_server_itself_is_full() -> None:
    held = Held()
    config = {
        "resources": {"max_concurrent_executions": 1, "max_concurrent_per_caller": 1},
        "limits": {"tools": {"ping": {"max_concurrent": 1}}},
    }
    async with open_server([held.tool, ping], config) as server:
        ada, ben = await server.client(ADA), await server.client(BEN)
        running = begin(ada, "hold")
        for _ in range(3):
            assert error_in(await ben.call_tool("ping"))["message"] == "All 1 slots are taken"
        held.release.set()
        await ada.answer(running)
        assert (await ben.call_tool("ping"))["isError"] is False


async def test_share_is_held_until_the_handler_has_really_ended() -> None:
    clock, held = ManualClock(), Held(timeout_ms=100)
    async with open_server([held.tool, ping], {"resources": {"max_concurrent_per_caller": 1}}, clock=clock) as server:
        ada = await server.client(ADA)
        call = begin(ada, "hold")
        await held.begun.wait()
        clock.advance(0.2)
        assert error_in((await ada.answer(call))["result"])["code"] == "TIMEOUT"
        assert error_in(await ada.call_tool("ping"))["details"]["reason"] == "no_free_slot"
        held.release.set()
        await server.runtime.runner.drain(PATIENCE)
        assert (await ada.call_tool("ping"))["isError"] is False


# Calls a minute


async def test_caller_that_calls_too_often_is_told_when_to_come_back() -> None:
    clock = ManualClock()
    async with open_server([ping], {"limits": {"calls_per_minute_per_caller": 3}}, clock=clock) as server:
        ada, ben = await server.client(ADA), await server.client(BEN)
        for _ in range(3):
            assert (await ada.call_tool("ping"))["isError"] is False
        error = error_in(await ada.call_tool("ping"))
        assert error["code"] == "RESOURCE_EXHAUSTED"
        assert error["message"] == "At most 3 calls a minute"
        setting = "limits.calls_per_minute_per_caller"
        facts = {"reason": "rate_limited", "limit": 3, "retryable": True, "retryAfterMs": 20_000, "setting": setting}
        assert error["details"] == facts
        assert (await ben.call_tool("ping"))["isError"] is False
        assert (await ada.call_tool("health"))["isError"] is False
        clock.advance(19.999)
        assert error_in(await ada.call_tool("ping"))["details"]["retryAfterMs"] == 1
        clock.advance(0.001)
        assert (await ada.call_tool("ping"))["isError"] is False
        assert (await ada.call_tool("ping"))["isError"] is True


async def test_tool_can_have_a_rate_of_its_own() -> None:
    config = {"limits": {"tools": {"ping": {"calls_per_minute": 1}}}}
    async with open_server([ping, pong], config, clock=ManualClock()) as server:
        ada, ben = await server.client(ADA), await server.client(BEN)
        assert (await ada.call_tool("ping"))["isError"] is False
        assert error_in(await ada.call_tool("ping"))["message"] == "At most 1 calls of 'ping' a minute"
        assert (await ada.call_tool("pong"))["isError"] is False
        assert (await ben.call_tool("ping"))["isError"] is False


async def test_refused_call_reaches_neither_slot_nor_handler_and_is_recorded() -> None:
    async with open_server([ping], {"limits": {"calls_per_minute_per_caller": 1}}, clock=ManualClock()) as server:
        client = await server.client()
        await client.call_tool("ping")
        await client.call_tool("ping")
        assert [record["outcome"] for record in server.records] == ["success", "tool_error"]
        assert server.records[1]["errorCode"] == "RESOURCE_EXHAUSTED"
        assert server.records[1]["level"] == "warn"


@given(st.integers(1, 20), st.lists(st.floats(0, 30), max_size=80))
def test_no_minute_has_more_than_twice_the_limit_and_waiting_as_told_always_helps(
    limit: int, pauses: list[float]
) -> None:
    rate, now, passed = Rate(limit), 0.0, list[float]()
    for pause in pauses:
        now += pause
        wait = rate.wait_ms("k", now)
        if wait:
            now += wait / 1000
            assert rate.wait_ms("k", now) == 0
        rate.take("k", now)
        passed.append(now)
    for begin_ in passed:
        assert sum(begin_ <= moment < begin_ + 60 for moment in passed) <= 2 * limit


def test_callers_that_have_been_quiet_are_forgotten() -> None:
    rate = Rate(60)
    for number in range(10_000):
        rate.take(number, number * 0.5)
    assert len(rate) < 10


def test_rate_that_is_too_high_to_be_measured_limits_nothing() -> None:
    rate = Rate(2**63 - 1)
    for _ in range(3):
        assert rate.wait_ms("ada", 1e6) == 0
        rate.take("ada", 1e6)


def test_a_whole_minute_s_worth_may_come_at_once_and_is_earned_back_evenly() -> None:
    rate = Rate(2)

    def waits(now: float, calls: int) -> list[int]:
        found: list[int] = []
        for _ in range(calls):
            found.append(rate.wait_ms("k", now))
            if not found[-1]:
                rate.take("k", now)
        return found

    assert waits(0.0, 3) == [0, 0, 30_000]
    assert waits(30.0, 2) == [0, 30_000]
    assert waits(1000.0, 3) == [0, 0, 30_000]


async def test_roles_do_not_make_another_caller() -> None:
    config = {"limits": {"calls_per_minute_per_caller": 1}, "resources": {"max_concurrent_per_caller": 1}}
    held = Held()
    async with open_server([ping, held.tool], config, clock=ManualClock()) as server:
        assert (await (await server.client(ADA)).call_tool("ping"))["isError"] is False
        again = await server.client(Caller("ada", frozenset({"admin"})))
        assert error_in(await again.call_tool("ping"))["details"]["reason"] == "rate_limited"


async def test_refused_call_uses_up_no_rate_of_its_own_and_the_longer_wait_is_told() -> None:
    config = {"limits": {"calls_per_minute_per_caller": 2, "tools": {"ping": {"calls_per_minute": 2}}}}
    clock = ManualClock()
    async with open_server([ping, pong], config, clock=clock) as server:
        client = await server.client()
        for name in ("pong", "pong"):
            await client.call_tool(name)
        for _ in range(3):
            assert error_in(await client.call_tool("ping"))["details"]["retryAfterMs"] == 30_000
        clock.advance(60)
        for _ in range(2):
            assert (await client.call_tool("ping"))["isError"] is False


async def test_one_caller_s_rate_and_share_say_nothing_about_the_server_s_health() -> None:
    config = {"limits": {"calls_per_minute_per_caller": 1}, "resources": {"max_concurrent_per_caller": 1}}
    async with open_server([ping], config, clock=ManualClock()) as server:
        client = await server.client()
        for _ in range(6):
            await client.call_tool("ping")
        assert server.runtime.slots.consecutive_refusals == 0
        assert server.runtime.slots.get_health_status() == "healthy"


async def test_traced_calls_have_no_rates_or_shares_of_their_own() -> None:
    config = {"limits": {"calls_per_minute_per_caller": 2}, "resources": {"max_concurrent_per_caller": 1}}
    async with open_server([ping], config, clock=ManualClock()) as server:
        outcomes = [await server.runtime.call("ping", trace=[] if n % 2 else None) for n in range(4)]
        assert [outcome.is_error for outcome in outcomes] == [False, False, True, True]


def stages_of(server: Any) -> list[str]:
    return [type(stage).__name__ for stage in server.runtime.stages]


async def test_stage_for_rates_always_stands_in_the_list_and_costs_nothing_where_none_is_set() -> None:
    async with open_server([ping]) as server:
        stage = server.runtime.stages[stages_of(server).index("LimitRate")]
        proceed: Any = object()
        assert stage(proceed) is proceed
