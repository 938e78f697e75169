"""A result that is refused as too large is not kept: the ledger has the error in its place, and no blob."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dragoman import AgentContext, AgentMessage, agent, tool
from dragoman.errors import NotFound, ProtocolError
from dragoman.testing import MemoryClient, TestServer, open_server
from tests.support.keyed_calls import is_repeat, with_key, without_ids
from tests.support.waiting import until

pytestmark = pytest.mark.requirement("FND-AACP-28")

LARGE = 3_000_000
"""More than an answer may have."""
QUOTES = 400_000
"""Their JSON is less than that, and more where it is itself the text of an answer."""


@tool(task="optional")
def give(count: int, what: str = "x") -> Any:
    return what * count


@tool(task="optional")
def fail(count: int, protocol: bool = False) -> None:
    large = "x" * count
    raise ProtocolError(large, {"large": large}, code=1001) if protocol else NotFound(large, {"large": large})


@agent("teller", effects="ledger")
async def teller(message: AgentMessage, ctx: AgentContext) -> Any:
    if message.type == "fail":
        raise NotFound("x" * LARGE, {"large": "x" * LARGE})
    return "x" * LARGE


Ask = Callable[[TestServer, MemoryClient], Awaitable[Any]]


def keyed(name: str, **arguments: Any) -> Ask:
    """A call with a key, and a repeat that gets the same."""

    async def ask(server: TestServer, client: MemoryClient) -> Any:
        first, repeat = [await client.call_tool(name, arguments, with_key()) for _ in range(2)]
        if "result" not in repeat and "isError" not in repeat:
            assert without_ids(repeat) == without_ids(first)
        else:
            assert is_repeat(repeat)
        return first

    return ask


def task(name: str, **arguments: Any) -> Ask:
    async def ask(server: TestServer, client: MemoryClient) -> Any:
        await server.runtime.create_task(name, arguments)
        await until(lambda: server.runtime.runner.under_way == 0)

    return ask


def message(type: str) -> Ask:
    async def ask(server: TestServer, client: MemoryClient) -> Any:
        return await client.call_tool(
            "agent/sendRequest", {"targetAgentId": "teller", "message": {"type": type, "payload": {}}}
        )

    return ask


def largest(folder: Path) -> int:
    """The most bytes that any row of the ledger has."""
    query = (
        "SELECT max(length(payload) + coalesce(length(error), 0)) FROM ledger_entry "
        "UNION ALL SELECT coalesce(max(length(value)), 0) FROM ledger_result"
    )
    with closing(sqlite3.connect(folder / "dragoman.db")) as connection:
        return max(size for (size,) in connection.execute(query))


ASKS = {
    "keyed value": (keyed("give", count=LARGE), "result_too_large"),
    "keyed answer": (keyed("give", count=QUOTES, what='"'), "result_too_large"),
    "keyed error": (keyed("fail", count=LARGE), "details_too_large"),
    "task value": (task("give", count=LARGE), None),
    "task answer": (task("give", count=QUOTES, what='"'), None),
    "task error": (task("fail", count=LARGE), None),
    "task protocol error": (task("fail", count=LARGE, protocol=True), None),
    "agent value": (message("tell"), "result_too_large"),
    "agent error": (message("fail"), "details_too_large"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("ask", "reason"), ASKS.values(), ids=ASKS)
async def test_the_ledger_has_the_error_in_place_of_what_was_refused(
    tmp_path: Path, ask: Ask, reason: str | None
) -> None:
    async with open_server([give, fail, teller], {"storage": {"data_dir": str(tmp_path)}}) as server:
        answer = await ask(server, await server.client())
        assert reason is None or f'"reason":"{reason}"' in answer["content"][0]["text"]
    assert 0 < largest(tmp_path) < 5_000
