"""Idempotency keys of a real client, over every transport and in both eras."""

from __future__ import annotations

import asyncio
from pathlib import Path

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from tests.support.keyed_calls import KEY, with_key
from tests.support.sdk_client import Way, connected, error_of, every_way
from tests.support.served import keyed_tools
from tests.support.waiting import until

pytestmark = pytest.mark.slow


def is_repeat(result: types.CallToolResult) -> bool:
    return (result.meta or {}).get("dragoman/repeated") is True


@every_way
async def test_a_repeated_call_has_its_effect_once(way: Way, tmp_path: Path) -> None:
    arguments = {"folder": str(tmp_path), "amount": 471108154711}
    async with connected(way, keyed_tools, {"storage.data_dir": str(tmp_path / "data")}) as (client, _):
        results = await asyncio.gather(
            *(client.call_tool("pay", arguments, meta=with_key()) for _ in range(20))  # type: ignore[arg-type]
        )
        results.append(await client.call_tool("pay", arguments, meta=with_key()))  # type: ignore[arg-type]
        assert [is_repeat(each) for each in results].count(False) == 1
        assert not any(each.is_error for each in results)
        assert [each.content for each in results] == [results[0].content] * 21
        refused = error_of(await client.call_tool("pay", {**arguments, "amount": 2}, meta=with_key()))  # type: ignore[arg-type]
        assert (refused["code"], refused["details"]["reason"]) == ("INVALID_ARGUMENT", "idempotency_conflict")
        assert "471108154711" not in str(refused)
        failures = [
            await client.call_tool("fail", {"folder": str(tmp_path)}, meta=with_key())  # type: ignore[arg-type]
            for _ in range(2)
        ]
        assert [is_repeat(each) for each in failures] == [False, True]
        assert [error_of(each)["message"] for each in failures] == ["no such account"] * 2
        with pytest.raises(MCPError) as wrong:
            await client.call_tool("pay", arguments, meta=with_key(KEY[:15]))  # type: ignore[arg-type]
        assert wrong.value.error.code == -32602
    assert len((tmp_path / "effects").read_text().splitlines()) == 2


@every_way
async def test_a_repeat_is_answered_while_all_slots_are_taken(way: Way, tmp_path: Path) -> None:
    arguments, other = {"folder": str(tmp_path)}, {"folder": str(tmp_path), "amount": 2}
    settings = {"storage.data_dir": str(tmp_path / "data"), "resources.max_concurrent_executions": 1}
    async with connected(way, keyed_tools, settings) as (client, _):
        first = await client.call_tool("pay", arguments, meta=with_key())  # type: ignore[arg-type]
        (tmp_path / "gated").touch()
        busy = asyncio.create_task(client.call_tool("pay", other))
        await until(lambda: (tmp_path / "effects").read_text().count("\n") == 2)
        refused = error_of(await client.call_tool("pay", other, meta=with_key("another-key-of-22-chars")))  # type: ignore[arg-type]
        repeat = await client.call_tool("pay", arguments, meta=with_key())  # type: ignore[arg-type]
        (tmp_path / "gate").touch()
        await busy
    assert refused["details"]["reason"] == "no_free_slot"
    assert (is_repeat(repeat), repeat.content) == (True, first.content)


@every_way
async def test_an_outcome_is_given_again_by_the_next_server(way: Way, tmp_path: Path) -> None:
    settings = {"storage.data_dir": str(tmp_path / "data")}
    results = []
    for _ in range(2):
        async with connected(way, keyed_tools, settings) as (client, _):
            results.append(await client.call_tool("pay", {"folder": str(tmp_path)}, meta=with_key()))  # type: ignore[arg-type]
    assert [is_repeat(each) for each in results] == [False, True]
    assert results[1].content == results[0].content
    assert len((tmp_path / "effects").read_text().splitlines()) == 1
