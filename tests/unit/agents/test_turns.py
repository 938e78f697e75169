"""Many messages for one agent at once."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman import AgentContext, AgentMessage, agent


def counter() -> Any:
    @agent("counter", effects="ledger")
    async def count(message: AgentMessage, ctx: AgentContext) -> int:
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        return int(ctx.state["count"])

    return count


@pytest.mark.parametrize("is_durable", [False, True])
async def test_hundreds_of_messages_at_once_are_handled_in_order(tmp_path: Path, is_durable: bool) -> None:
    settings = {"storage": {"data_dir": str(tmp_path)}} if is_durable else {}
    async with dragoman.open([counter()], settings) as runtime:
        assert runtime.agents is not None
        send = runtime.agents.send_request
        assert await asyncio.gather(*(send("counter", number) for number in range(700))) == list(range(1, 701))


async def test_a_handler_that_has_ended_needs_no_slot_while_its_effects_are_stored(tmp_path: Path) -> None:
    settings = {"storage": {"data_dir": str(tmp_path)}, "aacp": {"max_concurrent": 1}}
    handled: list[int] = []
    handled_by_first_answer: list[int] = []

    @agent("noting", effects="ledger")
    async def note(message: AgentMessage, ctx: AgentContext) -> None:
        handled.append(message.payload)

    async with dragoman.open([note], settings) as runtime:
        assert runtime.agents is not None

        async def send(number: int) -> None:
            assert runtime.agents is not None
            await runtime.agents.send_request("noting", number)
            if not handled_by_first_answer:
                handled_by_first_answer.extend(handled)

        await asyncio.gather(*map(send, range(20)))
    assert len(handled_by_first_answer) > 1
    assert handled == list(range(20))


@pytest.mark.slow
@pytest.mark.parametrize("is_durable", [False, True])
async def test_a_handling_leaves_nothing_to_the_garbage_collector(tmp_path: Path, is_durable: bool) -> None:
    async with dragoman.open([counter()], {"storage": {"data_dir": str(tmp_path)}}) as runtime:
        agents = runtime.agents
        assert agents is not None

        async def send(number: int) -> None:
            if is_durable:
                await agents.send_request("counter", number)
            else:
                await agents.send_message("counter", AgentMessage("count"))

        await asyncio.gather(*map(send, range(10)))
        gc.collect()
        gc.disable()
        try:
            await asyncio.gather(*map(send, range(100)))
            assert gc.collect() < 100
        finally:
            gc.enable()
