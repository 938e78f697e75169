"""What holds for every agent, whatever is sent to it, however, and whatever its handler does."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman import AgentContext, AgentMessage, agent
from dragoman.errors import InvalidArgument
from tests.support.agents import agents_served
from tests.support.examples import examples

AGENTS = ("a", "b", "c")
messages = st.lists(
    st.tuples(
        st.sampled_from(AGENTS),
        st.sampled_from(["message", "reliable", "request"]),
        st.integers(0, 4),  # How often its handler gives way.
        st.sampled_from(["good", "good", "good", "refuses"]),
    ),
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=examples(1.5), deadline=None)
@given(messages)
@pytest.mark.requirement("FND-TEST-02", "FND-AGENT-02", "FND-AGENT-03")
def test_an_agent_handles_one_message_at_a_time_in_order_and_its_state_adds_up(told: list[Any]) -> None:
    """Property 10: agent serialism. FIFO order for each agent, no overlap, and no update of the state is lost.

    Simple messages need not wait for those that are stored, so each of the two kinds has an order of its own.
    """
    running: dict[str, int] = defaultdict(int)
    handled: dict[str, list[int]] = defaultdict(list)

    def is_simple(number: int) -> bool:
        return told[number][1] == "message"

    async def handle(message: AgentMessage, ctx: AgentContext) -> Any:
        number, pauses, how = message.payload
        running[ctx.agent_id] += 1
        assert running[ctx.agent_id] == 1
        handled[ctx.agent_id].append(number)
        before = ctx.state.get("handled", [])
        for _ in range(pauses):
            await asyncio.sleep(0)
        running[ctx.agent_id] -= 1
        ctx.state["handled"] = [*before, number]
        if how == "refuses":
            raise InvalidArgument("refused")
        return number

    async def run() -> None:
        agents = [agent(name)(_apart(handle)) for name in AGENTS]
        async with agents_served(*agents) as served:
            coordinator, sent, expected = served.coordinator, [], defaultdict(list)
            for number, (target, way, pauses, how) in enumerate(told):
                payload = [number, pauses, how]
                expected[target].append(number)
                if way == "reliable":
                    sent.append(coordinator.send_reliable_message(target, payload))
                elif way == "request":
                    sent.append(coordinator.send_request(target, payload))
                else:
                    sent.append(coordinator.send_message(target, {"type": "t", "payload": payload}))
            outcomes = await asyncio.gather(*sent, return_exceptions=True)
            await served.settled()
            for number, ((_, way, _, how), outcome) in enumerate(zip(told, outcomes, strict=True)):
                if way != "reliable":
                    assert isinstance(outcome, InvalidArgument) if how == "refuses" else outcome == number
            for name in AGENTS:
                assert sorted(handled[name], key=is_simple) == sorted(expected[name], key=is_simple)
                good = [number for number in handled[name] if told[number][3] == "good"]
                assert await coordinator.read_state(name) == ({"handled": good} if good else {})

    asyncio.run(run())


def _apart(handle: Any) -> Any:
    async def handle_apart(message: AgentMessage, ctx: AgentContext) -> Any:
        return await handle(message, ctx)

    return handle_apart
