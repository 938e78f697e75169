"""One builder, a pipeline for each kind of work: what a policy decides."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import msgspec
import pytest

import dragoman
from dragoman import Ask, prompt, resource, tool
from dragoman.access.callers import Caller
from dragoman.calls.call import Call, Outcome, Service
from dragoman.calls.origin import Origin
from dragoman.calls.pipeline import PASSED_BY, Pipeline, build_pipeline
from dragoman.calls.places import Holder
from dragoman.calls.settings import LimitsConfig, ResourcesConfig
from dragoman.calls.shares import HolderOf, Shares
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

    def __init__(
        self,
        server: TestServer,
        resources: ResourcesConfig = ONE_SLOT,
        holder_of: HolderOf | None = None,
        **decided: Any,
    ) -> None:
        self._runner, clock = server.runtime.runner, server.runtime.clock
        self.slots = Slots(resources, clock=clock)
        calls, shares = server.runtime.calls, Shares(self.slots, resources, LimitsConfig(), holder_of)
        policy = replace(calls.policy, shares=shares, **decided)
        self.pipeline: Pipeline = build_pipeline(policy, calls.common)

    def begin(self, name: str, origin: Origin | None = None) -> tuple[Call, list[Outcome]]:
        """Start one; it, and what it is answered with."""
        outcomes: list[Outcome] = []
        call = Call(origin or Origin(), name, {}, "run-1", "corr-1", lambda call, outcome: outcomes.append(outcome))
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


async def test_a_call_that_has_waited_counts_once_against_what_its_caller_may_hold() -> None:
    held, resources = (
        Held(timeout_ms=10_000_000),
        ResourcesConfig(max_concurrent_executions=1, max_concurrent_per_caller=1),
    )
    async with open_server([held.tool, greet]) as server:
        handlings = Handlings(server, resources)
        handlings.begin("hold")
        await held.begun.wait()
        _, waited = handlings.begin("greet", Origin(waits_for_slot=True))
        await until(lambda: handlings.slots.waiting)
        held.release.set()
        await until(lambda: waited)
        assert waited[0].value == "hello"
        await until(lambda: not handlings.slots.in_use)
        _, again = handlings.begin("greet")
        await until(lambda: again)
        assert again[0].value == "hello"


async def test_calls_that_wait_for_slots_have_their_turns_over_tenants() -> None:
    held, held_too, order = Held(timeout_ms=10_000_000), Held("hold_too", timeout_ms=10_000_000), list[str]()
    resources = ResourcesConfig(max_concurrent_executions=2)

    def holder_of(call: Call) -> Holder:
        return Holder(call.origin.caller.principal)

    async with open_server([held.tool, held_too.tool, greet]) as server:
        handlings = Handlings(server, resources, holder_of)
        a, b, c = (Origin(Caller(name), waits_for_slot=True) for name in "abc")
        handlings.begin("hold", a)
        handlings.begin("hold_too", b)
        await asyncio.gather(held.begun.wait(), held_too.begun.wait())
        calls = [handlings.begin("greet", origin) for origin in (a, a, a, c, b)]
        for number, (call, _) in enumerate(calls):
            call.reply = lambda call, outcome, number=number: order.append("aaacb"[number])  # type: ignore[misc]
        await until(lambda: sum(map(len, handlings.slots.waiting.tenants.values())) == 3)
        held_too.release.set()
        await until(lambda: len(order) == 2)
        assert order == ["c", "b"]  # `a` has its half.
        held.release.set()
        await until(lambda: len(order) == 5)
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


@contextmanager
def entered() -> Iterator[Counter[str]]:
    """Counts the functions of the package that are entered: `calls/stages/admit.py admit`."""
    package, counts = str(Path(dragoman.__file__).parent) + "/", Counter[str]()

    def look(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            counts[f"{code.co_filename.removeprefix(package)} {code.co_name}"] += 1

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield counts
    finally:
        sys.setprofile(before)


async def test_a_plain_call_enters_few_functions_and_no_stage_that_would_only_pass_it_on() -> None:
    async with open_server([greet], clock=ManualClock()) as server:
        await server.runtime.call("greet")  # The first one makes ids, and sets the timer of the deadlines.
        with entered() as counts:
            assert (await server.runtime.call("greet")).value == "hello"
    assert {place.rpartition("/")[2] for place in counts if place.startswith("calls/stages/")} == {
        "record_completion.py record",
        "admit.py admit",
        "check_request.py check",
        "find_tool.py find",
        "check_scopes.py check",
        "take_slot.py take_slot",
        "validate_arguments.py validate",
        "enforce_deadline.py enforce",
    }
    assert len([place for place in counts if not place.startswith("testing/")]) <= 25


@tool(read_only=True, cache_ttl_ms=1000)
async def recall() -> str:
    """Has its results kept."""
    return "hello"


@tool(invalidates=("greetings",))
async def forget() -> str:
    """Makes kept results untrue."""
    return "hello"


@tool(task="optional")
async def greet_later() -> str:
    """May be a task."""
    return "hello"


@tool
async def greet_whom(name: Annotated[str, Ask("Whom?")] = "you") -> str:
    """Has a question."""
    return f"hello {name}"


@pytest.mark.parametrize(
    ("called", "key"),
    [("recall", None), ("forget", None), ("greet_later", None), ("greet_whom", None), ("greet", "k" * 16)],
)
async def test_a_call_that_is_not_plain_goes_through_every_stage(called: str, key: str | None) -> None:
    async with open_server([greet, recall, forget, greet_later, greet_whom]) as server:
        with entered() as counts:
            outcome = await server.runtime.call(called, idempotency_key=key)
        assert outcome.unwrap().startswith("hello")
        entered_modules = {place.partition(".py ")[0].replace("/", ".") for place in counts}
        assert {stage.__module__.removeprefix("dragoman.") for stage in PASSED_BY} <= entered_modules


async def test_the_stages_that_plain_calls_pass_by_would_only_pass_them_on() -> None:
    async with open_server([greet]) as server:
        found = server.runtime.catalogue.get("greet")
        assert found is not None
        call = Call(Origin(), "greet", {}, "run-1", "corr-1", lambda call, outcome: None, tool=found)
        before = msgspec.structs.asdict(call)
        passed_by = [stage for stage in server.runtime.stages if isinstance(stage, PASSED_BY)]
        assert len(passed_by) == len(PASSED_BY)
        for stage in passed_by:
            seen: list[Call] = []
            assert await stage(remember(seen))(call) == "done"
            assert seen == [call]
            assert msgspec.structs.asdict(call) == before


def remember(seen: list[Call]) -> Service:
    async def proceed(call: Call) -> str:
        seen.append(call)
        return "done"

    return proceed
