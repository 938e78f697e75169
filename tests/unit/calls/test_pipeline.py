"""One builder, a pipeline for each kind of work: what a policy decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dragoman import prompt, resource, tool
from dragoman.calls.call import Call, Outcome
from dragoman.calls.origin import Origin
from dragoman.calls.pipeline import Pipeline, build_pipeline
from dragoman.calls.settings import LimitsConfig, ResourcesConfig
from dragoman.calls.shares import Shares
from dragoman.calls.slots import Slots
from dragoman.errors import Aborted, NoFreeSlot, Stopping, TimedOut
from dragoman.testing import ManualClock, TestServer, open_server
from tests.support.calls import Held
from tests.support.waiting import PATIENCE, until

ONE_SLOT = ResourcesConfig(max_concurrent_executions=1)


@tool
async def greet() -> str:
    """Ends at once."""
    return "hello"


class Handlings:
    """A kind of work with one slot of its own, beside the tools of a server."""

    def __init__(self, server: TestServer, **decided: Any) -> None:
        self._runner, clock = server.runtime.runner, server.runtime.clock
        self.slots = Slots(ONE_SLOT, clock=clock)
        calls, shares = server.runtime.calls, Shares(ONE_SLOT, LimitsConfig())
        policy = replace(calls.policy, slots=self.slots, shares=shares, **decided)
        self.pipeline: Pipeline = build_pipeline(policy, calls.common)

    def begin(self, name: str) -> tuple[Call, list[Outcome]]:
        """Start one; it, and what it is answered with."""
        outcomes: list[Outcome] = []
        call = Call(Origin(), name, {}, "run-1", "corr-1", lambda call, outcome: outcomes.append(outcome))
        self._runner.submit(call, self.pipeline)
        return call, outcomes


async def test_each_kind_of_work_has_slots_of_its_own() -> None:
    held = Held()
    async with open_server([held.tool, greet], {"resources": {"max_concurrent_executions": 1}}) as server:
        handlings = Handlings(server)
        handlings.begin("hold")
        await held.begun.wait()
        assert (server.runtime.slots.in_use, handlings.slots.in_use) == (0, 1)
        assert (await server.runtime.call("greet")).value == "hello"
        held.release.set()
        await until(lambda: not handlings.slots.in_use)


@pytest.mark.parametrize("waits", [False, True])
async def test_work_that_finds_no_slot_is_refused_or_waits_as_its_policy_says(waits: bool) -> None:
    held = Held()
    async with open_server([held.tool, greet]) as server:
        handlings = Handlings(server, waits=waits)
        handlings.begin("hold")
        await held.begun.wait()
        _, second = handlings.begin("greet")
        await until(lambda: handlings.slots.waiting if waits else second)
        held.release.set()
        await until(lambda: second)
        assert [type(outcome.error) for outcome in second] == [type(None) if waits else NoFreeSlot]
        await until(lambda: not handlings.slots.in_use)


@pytest.mark.parametrize(("end", "error"), [("withdrawn", Aborted), ("stopped", Stopping), ("too late", NoFreeSlot)])
async def test_work_that_waits_for_a_slot_ends_when_it_is_no_longer_wanted(end: str, error: type) -> None:
    held, clock = Held(timeout_ms=10_000_000), ManualClock()
    async with open_server([held.tool, greet], clock=clock) as server:
        handlings = Handlings(server, waits=True)
        handlings.begin("hold")
        await held.begun.wait()
        call, outcomes = handlings.begin("greet")
        await until(lambda: handlings.slots.waiting)
        match end:
            case "withdrawn":
                call.withdraw("client")
            case "stopped":
                server.runtime.calls.common.patience.stop()
            case _:
                clock.advance(301)
        await until(lambda: server.records)
        assert [type(outcome.error) for outcome in outcomes] == ([] if end == "withdrawn" else [error])
        assert server.records[0]["outcome"] == ("aborted" if end == "withdrawn" else "tool_error")
        assert handlings.slots.in_use == 1
        held.release.set()
        await until(lambda: not handlings.slots.in_use)


async def test_a_policy_has_a_deadline_and_a_record_of_its_own() -> None:
    held, clock = Held(timeout_ms=10_000_000), ManualClock()
    async with open_server([held.tool], clock=clock) as server:
        _, outcomes = Handlings(server, timeout_ms=500, event="handling completed").begin("hold")
        await held.begun.wait()
        clock.advance(0.5)
        (outcome,) = outcomes
        assert isinstance(outcome.error, TimedOut)
        assert outcome.error.details == {"timeoutMs": 500}
        held.release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert [(each["message"], each["outcome"]) for each in server.log if "outcome" in each] == [
            ("handling completed", "late_completed")
        ]


async def test_work_that_a_stop_leaves_behind_is_recorded_as_its_kind() -> None:
    held = Held()
    async with open_server([held.tool]) as server:
        Handlings(server, event="handling completed").begin("hold")
        await held.begun.wait()
        assert await server.runtime.stop(0) == 1
        assert [(each["message"], each["outcome"]) for each in server.log if "outcome" in each] == [
            ("handling completed", "timeout")
        ]


async def test_tools_and_offers_share_slots_and_differ_in_what_finds_them() -> None:
    held = Held()

    @resource("data://slow")
    async def slow() -> str:
        return "read"

    @prompt
    async def ask() -> str:
        return "asked"

    async with open_server([held.tool, slow, ask], {"resources": {"max_concurrent_executions": 1}}) as server:
        client = await server.client()
        client.begin("tools/call", {"name": "hold"})
        await held.begun.wait()
        refused = await client.request("resources/read", {"uri": "data://slow"})
        assert refused["error"]["data"]["details"]["reason"] == "no_free_slot"
        held.release.set()
        await until(lambda: not server.runtime.slots.in_use)
        assert (await client.request("prompts/get", {"name": "ask"}))["result"]["messages"]
