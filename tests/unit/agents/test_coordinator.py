"""The coordinator: which agents there are, and messages that are kept in memory only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, cast

import pytest

from dragoman import AgentContext, AgentMessage, agent
from dragoman.access.callers import LOCAL
from dragoman.agents.aacp import AACPEnvelope
from dragoman.agents.agent import make_agent
from dragoman.agents.coordinator import Coordinator
from dragoman.agents.elsewhere import LONGEST_WAIT, StatesElsewhere
from dragoman.agents.ledger import Ledger, LedgerEntry, Settlement
from dragoman.errors import (
    Conflict,
    DuplicateAgent,
    InternalFailure,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Stopping,
    StorageBusy,
    StructuredError,
    TimedOut,
)
from dragoman.testing.clock import ManualClock
from tests.support.aacp import uuid
from tests.support.agents import FailingLedger, Gate, agents_served, all_held, quiet
from tests.support.waiting import PATIENCE, until

REQUEST = uuid(1)

pytestmark = pytest.mark.requirement("FND-TEST-06")


async def echo(message: AgentMessage, ctx: AgentContext) -> Any:
    return message.payload


@pytest.mark.requirement("FND-AGENT-01")
def test_an_id_can_be_registered_once_and_removed_once() -> None:
    coordinator = Coordinator()
    coordinator.register_agent("a", echo)
    with pytest.raises(DuplicateAgent) as refused:
        coordinator.register_agent("a", echo)
    assert "a" in str(refused.value)
    assert coordinator.unregister_agent("a") is True
    assert coordinator.unregister_agent("a") is False
    coordinator.register_agent("a", echo)


async def test_a_coordinator_without_a_server_takes_no_messages() -> None:
    with pytest.raises(Stopping):
        await Coordinator().send_message("a", {"type": "t"})


def test_a_coordinator_belongs_to_one_server() -> None:
    async def run() -> None:
        coordinator = Coordinator()
        async with agents_served(agents=coordinator):
            with pytest.raises(Exception, match="belongs to one server"):
                async with agents_served(agents=coordinator):
                    pass

    asyncio.run(run())


@pytest.mark.requirement("FND-AGENT-06")
@pytest.mark.requirement("FND-AACP-44")
async def test_the_handler_gets_the_message_and_its_context_and_its_result_is_returned() -> None:
    seen: list[Any] = []

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        seen.append((message, ctx.agent_id, dict(ctx.state), ctx.request_id, ctx.caller))
        ctx.logger.info("told", {"type": message.type})
        return {"answer": 42}

    async with agents_served(handle) as served:
        result = await served.coordinator.send_message("a", AgentMessage("t", [1], "somebody"))
        assert result == {"answer": 42}
        assert await served.coordinator.send_message("a", {"type": "u", "payload": 1}) == {"answer": 42}
        named = {"type": "v", "payload": None, "sourceAgentId": "somebody"}
        assert await served.coordinator.send_message("a", named) == {"answer": 42}
        assert await served.page() == []
    assert seen == [
        (AgentMessage("t", [1], "somebody"), "a", {}, None, LOCAL),
        (AgentMessage("u", 1, None), "a", {}, None, LOCAL),
        (AgentMessage("v", None, "somebody"), "a", {}, None, LOCAL),
    ]


async def test_a_handler_that_sends_to_an_unknown_agent_is_named_and_the_message_has_arrived() -> None:
    @agent("front")
    async def front(message: AgentMessage, ctx: AgentContext) -> Any:
        await ctx.send("nobody", {}) if message.payload == "send" else await ctx.request("nobody", {})

    async with agents_served(front) as served:
        for way in ("send", "request"):
            with pytest.raises(NotFound) as refused:
                await served.coordinator.send_request("front", way)
            assert refused.value.message == (
                "The message arrived, but its handler, the agent front, sends to an unknown agent: nobody"
            )
            assert refused.value.details == {"reason": "unknown_agent", "handler": "front", "target": "nobody"}


@pytest.mark.requirement("FND-AGENT-04")
async def test_an_unknown_agent_cannot_be_sent_anything() -> None:
    async with agents_served() as served:
        for send in (
            served.coordinator.send_message("a", {"type": "t"}),
            served.coordinator.send_reliable_message("a", 1),
            served.coordinator.send_request("a", 1),
        ):
            with pytest.raises(NotFound) as refused:
                await send
            assert refused.value.details == {"reason": "unknown_agent"}
        assert served.coordinator.get_agent_state("a") is None


@pytest.mark.requirement("FND-AGENT-02")
async def test_messages_of_one_agent_are_handled_in_order_and_never_overlap() -> None:
    running, most, order = 0, 0, []

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        before = ctx.state.get("count", 0)
        await quiet()
        ctx.state["count"] = before + 1
        order.append(message.payload)
        running -= 1
        return ctx.state["count"]

    async with agents_served(handle) as served:
        send = served.coordinator.send_message
        results = await asyncio.gather(*(send("a", {"type": "t", "payload": number}) for number in range(20)))
        assert results == list(range(1, 21))
        assert order == list(range(20))
        assert most == 1
        assert served.coordinator.get_agent_state("a") == {"count": 20}


@pytest.mark.requirement("FND-AGENT-03")
async def test_a_slow_agent_does_not_delay_another() -> None:
    gate = Gate()

    @agent("slow")
    async def slow(message: AgentMessage, ctx: AgentContext) -> Any:
        await gate()

    async with agents_served(slow, agent("quick")(echo)) as served:
        first = asyncio.ensure_future(served.coordinator.send_message("slow", {"type": "t"}))
        await gate.arrived.wait()
        assert await served.coordinator.send_message("quick", {"type": "t", "payload": 7}) == 7
        assert not first.done()
        gate.opened.set()
        assert await first is None


@pytest.mark.requirement("FND-AGENT-05")
async def test_the_state_can_be_read_and_its_changes_are_told() -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        if message.payload is not None:
            ctx.state["x"] = message.payload

    async with agents_served(handle) as served:
        coordinator = served.coordinator
        coordinator.on_state_change = lambda name, state: told.append((name, dict(state)))
        assert coordinator.get_agent_state("a") == {}
        await coordinator.send_message("a", {"type": "t", "payload": 1})
        await coordinator.send_message("a", {"type": "t", "payload": None})
        await coordinator.send_message("a", {"type": "t", "payload": 1})  # The same again is no change.
        await coordinator.send_message("a", {"type": "t", "payload": [2]})
        assert coordinator.get_agent_state("a") == {"x": [2]}
        assert await coordinator.read_state("a") == {"x": [2]}
        assert await coordinator.read_state("nobody") == {}
    assert told == [("a", {"x": 1}), ("a", {"x": [2]})]


@pytest.mark.requirement("FND-AGENT-05")
async def test_a_process_that_does_not_hold_an_agent_has_its_state_as_it_was_last_stored(tmp_path: Any) -> None:
    told: list[tuple[str, Any]] = []

    @agent("a", effects="ledger")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        ctx.state["x"] = message.payload

    class Counted(FailingLedger):
        reads = 0

        async def state(self, agent: str) -> Any:
            self.reads += 1
            assert threading.current_thread() is not threading.main_thread(), "read beside the event loop"
            return await self._ledger.state(agent)

    async with agents_served(handle, folder=tmp_path) as holder:
        await all_held(holder, "a")
        async with agents_served(handle, folder=tmp_path) as other:
            assert "a" not in other.deliveries.workers
            counted = Counted(other.deliveries.ledger)
            other.deliveries.elsewhere = StatesElsewhere(counted, other.clock)
            for name, served in (("holder", holder), ("other", other)):
                hook = partial(lambda name, id, state: told.append((name, dict(state))), name)
                served.coordinator.on_state_change = hook
            get = other.coordinator.get_agent_state
            assert get("a") == {}
            await holder.coordinator.send_message("a", {"type": "t", "payload": [1]})
            other.clock.advance(1.001)
            assert get("a") == {"x": [1]}
            await holder.coordinator.send_message("a", {"type": "t", "payload": 2})
            assert [get("a") for _ in range(100)] == [{"x": [1]}] * 100
            assert counted.reads == 2
            assert await other.coordinator.read_state("a") == {"x": 2}
            assert holder.coordinator.get_agent_state("a") == {"x": 2}
            other.clock.advance(1.001)
            assert get("a") == {"x": 2}
            assert get("nobody") is None
            await other.coordinator.send_request("a", 3)
    assert told == [("holder", {"x": value}) for value in ([1], 2, 3)]


async def test_a_state_that_takes_long_to_read_keeps_the_loop_shortly_and_is_read_once() -> None:
    goes_on, reads = threading.Event(), []

    class Slow:
        async def state(self, agent: str) -> Mapping[str, bytes]:
            reads.append(agent)
            goes_on.wait(PATIENCE)
            return {"x": b"%d" % len(reads)}

    clock = ManualClock()
    states = StatesElsewhere(cast(Ledger, Slow()), clock, longest_wait=0)
    for _ in range(3):
        with pytest.raises(StorageBusy):
            states.get("a")
    goes_on.set()

    def is_read(value: int) -> bool:
        with suppress(StorageBusy):
            return states.get("a") == {"x": value}
        return False

    await until(lambda: is_read(1))
    assert reads == ["a"]
    clock.advance(1.001)
    await until(lambda: is_read(2))
    assert len(reads) == 2
    assert LONGEST_WAIT <= 0.25


@pytest.mark.requirement("FND-AGENT-05")
async def test_a_change_of_the_state_is_told_as_it_was_stored_although_the_next_handling_has_begun(
    tmp_path: Any,
) -> None:
    told: list[int] = []

    @agent("a", effects="ledger")
    async def count(message: AgentMessage, ctx: AgentContext) -> None:
        ctx.state["count"] = ctx.state.get("count", 0) + 1

    async with agents_served(count, folder=tmp_path) as served:
        served.coordinator.on_state_change = lambda name, state: told.append(state["count"])
        await asyncio.gather(*(served.coordinator.send_reliable_message("a", number) for number in range(40)))
        await served.settled()
        await until(lambda: len(told) == 40)
    assert told == list(range(1, 41))


async def test_a_full_mailbox_refuses_messages_that_would_only_be_in_memory() -> None:
    gate = Gate()

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        await gate()
        return message.payload

    async with agents_served(handle, config={"aacp": {"mailbox_size": 2}}) as served:
        send = served.coordinator.send_message
        sent = [asyncio.ensure_future(send("a", {"type": "t", "payload": n})) for n in range(3)]
        await gate.arrived.wait()
        with pytest.raises(ResourceExhausted) as refused:
            await send("a", {"type": "t", "payload": 3})
        assert refused.value.details == {"reason": "mailbox_full", "limit": 2, "retryable": True}
        ids = [await served.coordinator.send_reliable_message("a", n) for n in range(10)]  # They wait in the ledger.
        assert len(set(ids)) == 10
        gate.opened.set()
        assert await asyncio.gather(*sent) == [0, 1, 2]
        assert {each.status for each in await served.settled()} == {"completed"}


@pytest.mark.requirement("FND-AACP-43")
async def test_hooks_are_told_of_messages_once_their_status_is_stored() -> None:
    told: list[Any] = []

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        if message.payload == "bad":
            raise InvalidArgument("no")
        return message.payload

    async with agents_served(handle) as served:
        coordinator = served.coordinator

        async def received(envelope: AACPEnvelope) -> None:
            told.append(("received", envelope.message_id))

        async def completed(message_id: str) -> None:
            (entry,) = [each for each in await served.page() if each.message_id == message_id]
            told.append(("completed", message_id, entry.status.value))

        def failed(message_id: str, error: StructuredError) -> None:
            told.append(("failed", message_id, error.message))

        coordinator.on_message_received = received
        coordinator.on_message_completed = completed
        coordinator.on_message_failed = failed
        good = await coordinator.send_reliable_message("a", "good")
        bad = await coordinator.send_reliable_message("a", "bad")
        await served.settled()
        await until(lambda: len(told) == 4)
        assert sorted(told) == sorted(
            [
                ("received", good),
                ("received", bad),
                ("completed", good, "completed"),
                ("failed", bad, "no"),
            ]
        )


@pytest.mark.requirement("FND-AACP-13", "FND-AACP-43")
@pytest.mark.parametrize("payload", ["good", "bad"])
async def test_nobody_learns_of_an_outcome_before_it_is_stored(payload: str) -> None:
    told: list[str] = []
    may_store = asyncio.Event()

    class Held(FailingLedger):
        def settle(self, settlement: Settlement) -> Awaitable[list[LedgerEntry]]:
            async def settle_later() -> list[LedgerEntry]:
                told.append("storing")
                await may_store.wait()
                return await self._ledger.settle(settlement)

            return settle_later()

    @agent("a", effects="ledger")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        if message.payload == "bad":
            raise InvalidArgument("no")
        ctx.state["x"] = message.payload
        return "done"

    async with agents_served(handle) as served:
        coordinator = served.coordinator
        served.deliveries.ledger = Held(served.deliveries.ledger)  # type: ignore[assignment]
        coordinator.on_message_completed = lambda id: told.append("completed")
        coordinator.on_message_failed = lambda id, error: told.append("failed")
        coordinator.on_state_change = lambda id, state: told.append("state")
        asked = asyncio.ensure_future(coordinator.send_request("a", payload, request_id=REQUEST))
        asked.add_done_callback(lambda _: told.append("answered"))
        await until(lambda: told)
        await quiet()
        assert told == ["storing"]
        assert (await served.page())[0].is_open
        may_store.set()
        await asyncio.gather(asked, return_exceptions=True)
        await served.settled()
        expected = {"good": {"storing", "completed", "state", "answered"}, "bad": {"storing", "failed", "answered"}}
        await until(lambda: {*told} == expected[payload])


async def test_a_hook_that_raises_is_logged_and_stops_nothing() -> None:
    def fail(agent_id: str, state: Mapping[str, Any]) -> None:
        raise ValueError("no")

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        ctx.state["x"] = message.payload
        return "done"

    async with agents_served(handle) as served:
        served.coordinator.on_state_change = fail
        assert await served.coordinator.send_message("a", {"type": "t", "payload": 1}) == "done"
        assert [each["message"] for each in served.server.log].count("a hook of the coordinator failed") == 1


@pytest.mark.requirement("FND-AACP-43")
@pytest.mark.requirement("FND-AACP-13")
async def test_a_request_returns_what_the_agent_answers_once_it_is_stored() -> None:
    async with agents_served(agent("a")(echo)) as served:
        assert await served.coordinator.send_request("a", {"x": 1}) == {"x": 1}
        request, response = await served.page()
        assert (request.kind, request.status, response.kind, response.payload) == (
            "REQUEST",
            "completed",
            "RESPONSE",
            b'{"x":1}',
        )
        assert response.request_id == request.request_id


@pytest.mark.requirement("FND-AACP-14")
@pytest.mark.requirement("FND-AACP-34")
@pytest.mark.requirement("FND-AACP-39")
@pytest.mark.parametrize("is_durable", [False, True])
async def test_the_same_request_a_hundred_times_at_once_is_one_execution(tmp_path: Any, is_durable: bool) -> None:
    runs = 0

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        nonlocal runs
        runs += 1
        await quiet()
        return {"run": runs}

    async with agents_served(handle, folder=tmp_path if is_durable else None) as served:
        ask = served.coordinator.send_request
        answers = await asyncio.gather(*(ask("a", 1, request_id=REQUEST) for _ in range(100)))
        assert answers == [{"run": 1}] * 100
        assert await ask("a", 1, request_id=REQUEST) == {"run": 1}
        with pytest.raises(Conflict):
            await ask("a", 2, request_id=REQUEST)
        assert runs == 1
        assert len(await served.page()) == 2


@pytest.mark.requirement("FND-AACP-34")
async def test_a_request_that_failed_gives_everybody_the_same_error() -> None:
    gate = Gate()

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        await gate()
        raise InvalidArgument("not this one", {"why": 1})

    async with agents_served(handle) as served:
        ask = served.coordinator.send_request
        asked = [asyncio.ensure_future(ask("a", 1, request_id=REQUEST)) for _ in range(3)]
        await gate.arrived.wait()
        gate.opened.set()
        errors = await asyncio.gather(*asked, return_exceptions=True)
        errors += await asyncio.gather(ask("a", 1, request_id=REQUEST), return_exceptions=True)
        assert [(type(each), str(each), getattr(each, "details", None)) for each in errors] == [
            (InvalidArgument, "not this one", {"why": 1})
        ] * 4


@pytest.mark.requirement("FND-AACP-17")
@pytest.mark.requirement("FND-AACP-18")
@pytest.mark.requirement("FND-AACP-11")
async def test_a_sender_that_waits_too_long_is_told_that_the_outcome_is_unknown_and_can_learn_it_later() -> None:
    gate = Gate()

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        await gate()
        return "late"

    async with agents_served(handle) as served:
        ask = asyncio.ensure_future(served.coordinator.send_request("a", 1, request_id=REQUEST, timeout_ms=1000))
        await gate.arrived.wait()
        served.clock.advance(1)
        with pytest.raises(TimedOut) as unknown:
            await ask
        assert unknown.value.details == {"timeoutMs": 1000, "requestId": REQUEST, "outcome": "UNKNOWN"}
        (entry,) = await served.page()
        assert entry.is_open
        gate.opened.set()
        assert await served.coordinator.send_request("a", 1, request_id=REQUEST) == "late"


async def test_an_agent_that_is_removed_ends_its_handling_and_what_is_left_waits_for_its_return() -> None:
    gate, runs = Gate(), list[Any]()

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        runs.append(message.payload)
        await gate()
        ctx.state["last"] = message.payload
        return message.payload

    async with agents_served(handle) as served:
        coordinator = served.coordinator
        first = asyncio.ensure_future(coordinator.send_request("a", 1))
        await gate.arrived.wait()
        await coordinator.send_reliable_message("a", 2)
        assert coordinator.unregister_agent("a")
        coordinator.register_agent("a", echo)
        await quiet()
        assert runs == [1]  # Nothing overlaps what is under way, not even of the new agent.
        assert [each.status for each in await served.page()] == ["running", "waiting"]
        gate.opened.set()
        assert await first == 1
        assert [each.status for each in await served.settled()] == ["completed", "completed", "completed"]
        assert runs == [1]
        assert await coordinator.read_state("a") == {"last": 1}


async def test_an_agent_that_is_removed_for_good_is_given_back_when_its_handling_has_ended() -> None:
    gate = Gate()

    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        await gate()
        return "done"

    async with agents_served(handle) as served:
        asked = asyncio.ensure_future(served.coordinator.send_request("a", 1))
        await gate.arrived.wait()
        served.coordinator.unregister_agent("a")
        await quiet()
        assert (await served.deliveries.admin.figures())["agents"]["a"]["isHeld"] is True
        gate.opened.set()
        assert await asked == "done"
        await served.rest()
        assert (await served.deliveries.admin.figures())["agents"]["a"]["isHeld"] is False


async def test_an_agent_can_come_while_the_server_runs() -> None:
    async with agents_served() as served:
        served.coordinator.register_agent("a", echo)
        assert await served.coordinator.send_message("a", {"type": "t", "payload": 1}) == 1  # Through the ledger.
        await all_held(served, "a")
        assert await served.coordinator.send_message("a", {"type": "t", "payload": 2}) == 2
        await served.advance(2)
        assert (await served.deliveries.admin.figures())["agents"]["a"]["epoch"] == 1  # It is held once.


async def test_a_result_that_is_no_json_fails_the_request() -> None:
    @agent("a")
    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        return object()

    async with agents_served(handle) as served:
        with pytest.raises(InternalFailure) as failed:
            await served.coordinator.send_request("a", 1)
        assert failed.value.details == {"reason": "bad_response"}


async def test_agents_that_are_exchanged_are_told_of_once() -> None:
    async with agents_served(agent("a")(echo)) as served:
        coordinator, changes = served.coordinator, list[list[str]]()
        coordinator.on_agents_change = lambda: changes.append(sorted(coordinator.agents))
        leaving = list(coordinator.agents.values())
        coming = [make_agent("a", echo), make_agent("b", echo)]
        coordinator.check_exchange(leaving, coming)
        coordinator.exchange(leaving, coming)
        assert changes == [["a", "b"]]
        with pytest.raises(DuplicateAgent):
            coordinator.check_exchange([], coming)
        with pytest.raises(DuplicateAgent):
            coordinator.check_exchange(coming, [coming[0], coming[0]])
