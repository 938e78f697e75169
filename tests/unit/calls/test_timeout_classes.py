"""How long a tool may take: by its category, unless the tool or the operator says otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman import ToolDefinition, define_tool, tool
from dragoman.config import make_config
from dragoman.errors import ConfigError, InvalidTool
from dragoman.testing import ManualClock, open_server
from dragoman.tools.categories import CATEGORIES, TOOL_CATEGORIES
from dragoman.tools.settings import CategoryTimeouts, ToolsConfig
from tests.support.answers import error_in
from tests.support.calls import Held, Hung, begin, happened

BY_CATEGORY = {
    "query": {
        *("memory_retrieve", "memory_search", "memory_list", "agent_get", "agent_list", "session_status", "trace_get"),
        *("trace_list", "config_get", "config_show", "ability_list", "guard_list", "bugfix_list", "refactor_list"),
        *("workflow_list", "workflow_describe"),
    },
    "mutation": {
        *("memory_store", "memory_delete", "agent_register", "agent_remove", "session_create", "session_join"),
        *("session_leave", "session_complete", "session_fail", "config_set", "guard_apply"),
    },
    "scan": {"bugfix_scan", "refactor_scan", "trace_analyze", "guard_check"},
    "execution": {"agent_run", "workflow_run", "bugfix_run", "refactor_apply", "ability_inject"},
}


def named(name: str, **given: Any) -> Any:
    definition = ToolDefinition(name=name, description="", input_schema={"type": "object"}, **given)
    return define_tool(definition, lambda arguments, context: None)


async def timeouts(tools: list[Any], config: dict[str, Any] | None = None) -> dict[str, int]:
    async with open_server(tools, config) as server:
        return {registered.definition.name: registered.timeout_ms for registered in server.runtime.catalogue}


@pytest.mark.requirement("PRD-TIME-01", "PRD-TIME-02")
def test_categories_and_their_defaults_are_the_documents() -> None:
    assert CATEGORIES == ("query", "mutation", "scan", "execution")
    assert CategoryTimeouts() == CategoryTimeouts(query=10_000, mutation=30_000, scan=120_000, execution=1_200_000)
    assert ToolsConfig().default_timeout_ms == 30_000


@pytest.mark.requirement("PRD-TIME-05", "PRD-TIME-06", "PRD-TIME-07", "PRD-TIME-08", "INV-MCP-TIMEOUT-002")
@pytest.mark.requirement("PRD-TIME-02")
@pytest.mark.parametrize("category", CATEGORIES)
async def test_well_known_tools_have_the_timeout_of_their_category(category: str) -> None:
    names = BY_CATEGORY[category]
    assert {name for name, its in TOOL_CATEGORIES.items() if its == category} == names
    found = await timeouts([named(name) for name in names], {"timeouts": {"tool_timeouts": {category: 4_321}}})
    assert {found[name] for name in names} == {4_321}


@pytest.mark.requirement("PRD-TIME-01")
async def test_tool_with_neither_category_nor_override_has_the_overall_default() -> None:
    found = await timeouts([named("memory_bulk_delete"), named("mine")], {"tools": {"default_timeout_ms": 777}})
    assert (found["memory_bulk_delete"], found["mine"]) == (777, 777)


@pytest.mark.requirement("INV-MCP-TIMEOUT-002", "INV-MCP-TIMEOUT-003", "PRD-TIME-03")
@pytest.mark.parametrize(
    ("given", "overrides", "expected"),
    [
        ({"category": "scan"}, {}, 120_000),
        ({"category": "scan", "timeout_ms": 5}, {}, 5),
        ({"category": "scan"}, {"t": 6}, 6),
        ({"category": "scan", "timeout_ms": 5}, {"t": 6}, 6),
        ({"category": "scan"}, {"other": 6}, 120_000),
    ],
)
async def test_override_wins_over_the_tool_and_the_tool_over_its_category(
    given: dict[str, Any], overrides: dict[str, int], expected: int
) -> None:
    found = await timeouts([named("t", **given)], {"timeouts": {"toolOverrides": overrides}})
    assert found["t"] == expected


@pytest.mark.requirement("INV-MCP-TIMEOUT-002")
async def test_category_that_a_tool_states_counts_whatever_its_name_is() -> None:
    found = await timeouts([named("memory_list", category="scan"), named("agent_run", category="scan")])
    assert (found["memory_list"], found["agent_run"]) == (120_000, 120_000)


@pytest.mark.requirement("PRD-TIME-03")
@pytest.mark.parametrize("value", [0, -1, 1.5, "soon"])
def test_override_that_is_no_positive_number_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError):
        make_config({"timeouts": {"tool_overrides": {"t": value}}})


@pytest.mark.requirement("PRD-TIME-02")
async def test_category_of_ones_own_is_refused() -> None:
    with pytest.raises(InvalidTool, match="must be one of query, mutation, scan, execution"):
        await timeouts([named("t", category="quick")])


@pytest.mark.requirement("INV-MCP-TIMEOUT-001", "PRD-P2", "PRD-METRIC-02", "INV-MCP-TIMEOUT-005")
@pytest.mark.parametrize("category", CATEGORIES)
async def test_handler_that_never_returns_is_answered_at_its_category_s_deadline(category: str) -> None:
    clock, held = ManualClock(), Held()
    hung = tool(name="hung", category=category)(held._run)
    async with open_server([hung], clock=clock) as server:
        client = await server.client()
        call = begin(client, "hung")
        await held.begun.wait()
        limit = getattr(CategoryTimeouts(), category)
        clock.advance(limit / 1000 - 0.001)
        assert not [message for message in client.received() if message.get("id") == call]
        clock.advance(0.001)
        result = (await client.answer(call))["result"]
        assert error_in(result)["code"] == "TIMEOUT"
        assert result["_meta"]["dragoman/durationMs"] == limit
        held.release.set()


@pytest.mark.requirement("INV-MCP-TIMEOUT-001", "PRD-P2", "PRD-METRIC-02")
@pytest.mark.parametrize("category", CATEGORIES)
async def test_sync_handler_that_never_returns_is_answered_at_its_category_s_deadline(category: str) -> None:
    clock, hung = ManualClock(), Hung()
    async with open_server([tool(name="hung", category=category)(hung._run)], clock=clock) as server:
        client = await server.client()
        call = begin(client, "hung")
        await happened(hung.begun)
        clock.advance(getattr(CategoryTimeouts(), category) / 1000)
        assert error_in((await client.answer(call))["result"])["code"] == "TIMEOUT"
        hung.release.set()
        await happened(hung.finished)


@pytest.mark.requirement("INV-MCP-TIMEOUT-005")
@pytest.mark.parametrize("dialect", ["structured", "envelope", "plain"])
async def test_every_result_carries_the_time_since_its_call_came_in(dialect: str) -> None:
    clock = ManualClock()

    @tool
    async def work(fails: bool = False) -> dict[str, int]:
        """Takes a second and a half."""
        clock.advance(1.5)
        if fails:
            raise ValueError
        return {"a": 1}

    async with open_server([work], {"response": {"dialect": dialect}}, clock=clock) as server:
        client = await server.client()
        for name, arguments, took in (
            ("work", {}, 1500),
            ("work", {"fails": True}, 1500),
            ("work", {"fails": 5}, 0),
            ("nobody", {}, 0),
        ):
            result = await client.call_tool(name, arguments)
            assert result["_meta"]["dragoman/durationMs"] == took
            if dialect == "envelope":
                assert json.loads(result["content"][0]["text"])["metadata"]["durationMs"] == took
