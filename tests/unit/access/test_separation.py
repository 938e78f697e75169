"""Two callers of one name are two callers, wherever something is kept for one of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman import ToolContext, tool
from dragoman.access.callers import Caller
from dragoman.testing import ManualClock, MemoryClient, open_server

ADA = Caller("ada", issuer="https://a.example")
OTHERS = [Caller("ada"), Caller("ada", issuer="https://b.example")]
SAME = Caller("ada", issuer="https://a.example", client_id="another")


@tool(read_only=True, cache_ttl_ms=60_000)
def issuer_of(ctx: ToolContext) -> list[str | None]:
    """Says who vouches for the caller, and to whom the token was given."""
    return [ctx.caller.issuer, ctx.caller.client_id]


@tool(read_only=True, cache_ttl_ms=60_000)
def scopes_of(ctx: ToolContext) -> list[str]:
    """Says what the caller was granted."""
    return sorted(ctx.caller.scopes or ())


def serving(**config: Any) -> Any:
    storage = {"engine": "memory"}
    return open_server([issuer_of, scopes_of], {"storage": storage, **config}, clock=ManualClock(), memory_tools=True)


async def said(client: MemoryClient, name: str, arguments: dict[str, Any] | None = None) -> Any:
    return json.loads((await client.call_tool(name, arguments))["content"][0]["text"])


@pytest.mark.parametrize("other", OTHERS)
async def test_memories_are_not_shared(other: Caller) -> None:
    async with serving() as server:
        ada, namesake = await server.client(ADA), await server.client(other)
        await ada.call_tool("memory_store", {"key": "k", "value": "secret"})
        assert (await said(namesake, "memory_list"))["total"] == 0
        assert (await said(await server.client(SAME), "memory_list"))["total"] == 1


@pytest.mark.parametrize("other", [*OTHERS, SAME])
async def test_kept_results_are_not_shared(other: Caller) -> None:
    async with serving() as server:
        for caller in (ADA, other):
            assert await said(await server.client(caller), "issuer_of") == [caller.issuer, caller.client_id]


async def test_results_that_were_kept_for_other_scopes_are_worked_out_again() -> None:
    async with serving() as server:
        for scopes in ({"tool:*"}, {"tool:scopes_of"}):
            assert await said(await server.client(Caller("ada", scopes=frozenset(scopes))), "scopes_of") == [*scopes]


@pytest.mark.parametrize("other", OTHERS)
async def test_a_rate_is_not_used_up_by_another(other: Caller) -> None:
    async with serving(limits={"calls_per_minute_per_caller": 1}) as server:
        ada, namesake = await server.client(ADA), await server.client(other)
        again = await server.client(SAME)  # A limit that a new client lifts would be none.
        results = [await client.call_tool("issuer_of") for client in (ada, namesake, again)]
        assert [result.get("isError", False) for result in results] == [False, False, True]
