"""What processes of one server tell each other about the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dragoman
from dragoman import AgentContext, AgentMessage, agent
from dragoman.changes import Change, LedgerChanged
from tests.support.waiting import until


@agent("a", effects="ledger")
async def answer(message: AgentMessage, ctx: AgentContext) -> Any:
    return message.payload


async def test_a_process_wakes_the_holder_of_an_agent_and_is_woken_when_there_is_an_answer(tmp_path: Path) -> None:
    by_holder: list[Change] = []
    by_other: list[Change] = []
    config = {"storage": {"data_dir": str(tmp_path)}}
    async with dragoman.open([answer], config) as holder, dragoman.open([answer], config) as other:
        holder.shared.publish, other.shared.publish = by_holder.append, by_other.append
        assert holder.agents is not None
        assert other.agents is not None
        assert await holder.agents.send_request("a", 1) == 1
        assert await other.agents.send_request("a", 2) == 2
        await until(lambda: bool(by_holder and by_other))
        assert (by_other[0], by_holder[0]) == (LedgerChanged(), LedgerChanged())
        before = len(by_holder)
        assert await holder.agents.send_request("a", 3) == 3
        holder.apply(LedgerChanged())  # Nothing to find is no harm.
    assert len(by_holder) == before  # Whoever waited for it is in the same process.
