"""The dialects as a client meets them: chosen by a setting, for every answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from dragoman import tool
from dragoman.access.callers import Caller
from dragoman.calls.repeats import IDEMPOTENCY_KEY
from dragoman.errors import InvalidArgument, TimedOut
from dragoman.replies.vocabulary import EnvelopeCode
from dragoman.testing import ManualClock, MemoryClient, open_server
from tests.support.calls import Held, begin

ENVELOPE = {"response": {"dialect": "envelope"}}


@tool(read_only=True, cache_ttl_ms=0)
async def count(to: int) -> dict[str, list[int]]:
    """Counts."""
    return {"numbers": list(range(to))}


@tool
async def fail(kind: str) -> None:
    """Fails."""
    raise {"value": ValueError, "missing": NotImplementedError}[kind]("secret text")


def said(result: dict[str, Any]) -> dict[str, Any]:
    envelope: dict[str, Any] = json.loads(result["content"][0]["text"])
    return envelope


@pytest.mark.requirement("INV-MCP-RESP-001", "PRD-P3", "PRD-METRIC-03")
async def test_every_answer_of_every_tool_is_an_envelope() -> None:
    async with open_server([count, fail], {**ENVELOPE, "limits": {"max_array_size": 5}}) as server:
        client = await server.client()
        for name, arguments in (
            ("count", {"to": 3}),
            ("count", {"to": 300}),
            ("count", {"to": "x"}),
            ("count", {}),
            ("count", {"to": 1, "more": [0] * 6}),
            ("fail", {"kind": "value"}),
            ("fail", {"kind": "missing"}),
            ("health", {}),
            ("nobody", {}),
            ("result_continue", {"cursor": "x"}),
        ):
            result = await client.call_tool(name, arguments)
            envelope = said(result)
            assert envelope["success"] is not result["isError"]
            assert envelope.keys() == {"success", "error" if result["isError"] else "data", "metadata"}
            assert envelope["metadata"]["durationMs"] >= 0
            if result["isError"]:
                assert envelope["error"]["code"] in list(EnvelopeCode)
                assert "secret" not in json.dumps(result)


EVERY_TOOL = {
    "tools": {
        "memory_enabled": True,
        "admin_registration_enabled": True,
        "admin_policy": {"mode": "local_stdio_only"},
    },
    "security": {"dynamic_registration_enabled": True},
    "storage": {"engine": "memory"},
    "response": {"max_list_items": 5},
}
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("memory_store", {"key": "k", "value": "some words"}),
    ("memory_retrieve", {"key": "k"}),
    ("memory_list", {}),
    ("memory_search", {"query": "words"}),
    ("memory_delete", {"key": "k"}),
    ("memory_bulk_delete", {"keys": ["k"]}),
    ("admin/registerTool", {"toolType": "echo", "name": "mine"}),
    ("mine", {"message": "hi"}),
    ("admin/unregisterTool", {"name": "mine"}),
    ("health", {}),
]
"""In an order in which each succeeds."""


@pytest.mark.requirement("PRD-P3", "PRD-METRIC-03")
async def test_each_dialect_words_the_results_and_errors_of_every_tool_of_the_server() -> None:
    results: dict[str, list[Any]] = {}
    for dialect in ("structured", "envelope", "plain"):
        config = {**EVERY_TOOL, "response": {**EVERY_TOOL["response"], "dialect": dialect}}
        async with open_server([count], config, clock=ManualClock()) as server:
            client = await server.client()
            listed = {each["name"] for each in await client.list_tools()} - {"count", "result_continue"}
            assert listed == {name for name, _ in CALLS} - {"mine"}
            results[dialect] = []
            for name, arguments in CALLS:
                for given, fails in ((arguments, False), ({"no": "such"}, True)):
                    result = await client.call_tool(name, given)
                    assert result["isError"] is fails, (dialect, name, result)
                    (block,) = result["content"]
                    body = block["text"] if fails and dialect == "plain" else json.loads(block["text"])
                    if name == "health" and not fails:
                        del body.get("data", body)["resources"]  # These differ from moment to moment.
                    results[dialect].append(body)
    assert all(isinstance(value, dict) for value in results["structured"])
    assert results["plain"][::2] == results["structured"][::2] == [each["data"] for each in results["envelope"][::2]]
    for structured, envelope, plain in zip(*(results[each][1::2] for each in results), strict=True):
        assert structured["code"] == "INVALID_ARGUMENT"
        assert envelope["error"].keys() >= {"code", "message", "retryable"}
        assert plain.startswith("Input validation failed")


@pytest.mark.requirement("PRD-P3")
async def test_a_result_that_was_cut_goes_on_in_the_same_envelope() -> None:
    async with open_server([count], {"response": {"dialect": "envelope", "max_list_items": 5}}) as server:
        client = await server.client()
        cut = await client.call_tool("count", {"to": 9})
        result = await client.call_tool("result_continue", {"cursor": cut["_meta"]["dragoman/nextCursor"]})
        assert said(result).keys() == {"success", "data", "metadata"}
        assert said(result)["data"]["items"] == [5, 6, 7, 8]


@pytest.mark.requirement("PRD-RESP-03")
async def test_a_result_that_was_kept_says_so() -> None:
    @tool(read_only=True, cache_ttl_ms=60_000)
    async def look() -> dict[str, int]:
        """Looks."""
        return {"a": 1}

    async with open_server([look], ENVELOPE) as server:
        client = await server.client()
        bodies = [said(await client.call_tool("look")) for _ in range(2)]
    assert [each["data"] for each in bodies] == [{"a": 1}] * 2
    assert [each["metadata"]["cached"] for each in bodies] == [False, True]


@pytest.mark.requirement("INV-MCP-TIMEOUT-004")
async def test_call_that_passes_its_deadline_is_a_tool_timeout() -> None:
    clock, held = ManualClock(), Held(timeout_ms=100)
    async with open_server([held.tool], ENVELOPE, clock=clock) as server:
        client = await server.client()
        call = begin(client, "hold")
        await held.begun.wait()
        clock.advance(0.1)
        error = said((await client.answer(call))["result"])["error"]
        assert (error["code"], error["retryable"]) == ("TOOL_TIMEOUT", False)
        held.release.set()


async def read_on(client: MemoryClient, cursor: str | None) -> list[Any]:
    items: list[Any] = []
    while cursor is not None:
        part = said(await client.call_tool("result_continue", {"cursor": cursor}))["data"]
        items += part["items"]
        cursor = part.get("nextCursor")
    return items


async def test_what_was_cut_can_be_read_on_by_its_caller_and_by_nobody_else() -> None:
    async with open_server([count], ENVELOPE) as server:
        ada, ben = await server.client(Caller("ada")), await server.client(Caller("ben"))
        result = await ada.call_tool("count", {"to": 250})
        assert result["_meta"]["dragoman/truncated"] is True
        assert result["structuredContent"] == {"numbers": list(range(100))}
        cursor = result["_meta"]["dragoman/nextCursor"]
        assert said(await ben.call_tool("result_continue", {"cursor": cursor}))["error"]["code"] == "NOT_FOUND"
        assert await read_on(ada, cursor) == list(range(100, 250))


async def test_result_that_was_kept_says_so() -> None:
    for config in (ENVELOPE, {}, {"response": {"dialect": "plain"}}):
        async with open_server([count], config) as server:
            client = await server.client()
            metas = [(await client.call_tool("count", {"to": 2}))["_meta"] for _ in range(2)]
            assert [meta.get("dragoman/cached", False) for meta in metas] == [False, True]


@pytest.mark.requirement("PRD-RESP-03")
async def test_cached_is_in_the_envelope_s_metadata() -> None:
    async with open_server([count], ENVELOPE) as server:
        client = await server.client()
        found = [said(await client.call_tool("count", {"to": to}))["metadata"] for to in (2, 2, 200, 200)]
        assert [(one["cached"], one["truncated"]) for one in found] == [
            (False, False),
            (True, False),
            (False, True),
            (True, True),
        ]


@pytest.mark.parametrize("dialect", ["structured", "plain"])
async def test_other_dialects_leave_nothing_to_continue_and_have_no_tool_for_it(dialect: str) -> None:
    config = {"response": {"dialect": dialect, "max_response_bytes": 2000}}
    async with open_server([count], config) as server:
        client = await server.client()
        assert [listed["name"] for listed in await client.list_tools()] == ["count", "health"]
        assert (await client.call_tool("count", {"to": 2000}))["isError"] is True
        assert (await client.call_tool("count", {"to": 20}))["isError"] is False


@pytest.mark.requirement("PRD-P6")
async def test_every_way_to_fail_has_a_code_and_says_why() -> None:
    clock, held = ManualClock(), Held(timeout_ms=50)
    config = {
        "limits": {"max_array_size": 2, "tools": {"count": {"calls_per_minute": 1}}},
        "tools": {"max_payload_bytes": 100},
        "resources": {"max_concurrent_executions": 1},
    }
    async with open_server([count, fail, held.tool], config, clock=clock) as server:
        client = await server.client()
        found: dict[str, dict[str, Any]] = {}
        for what, name, arguments in (
            ("unknown", "nobody", {}),
            ("wrong", "count", {"to": "x"}),
            ("large", "count", {"to": "x" * 200}),
            ("many", "count", {"to": [0, 0, 0]}),
            ("often", "count", {"to": 1}),
            ("broken", "fail", {"kind": "value"}),
        ):
            found[what] = said(await client.call_tool(name, arguments))
        call = begin(client, "hold")
        await held.begun.wait()
        found["full"] = said(await client.call_tool("fail", {"kind": "value"}))
        clock.advance(1)
        found["late"] = said((await client.answer(call))["result"])
        held.release.set()
    assert {what: error["code"] for what, error in found.items()} == {
        "unknown": "NOT_FOUND",
        "wrong": "INVALID_ARGUMENT",
        "large": "RESOURCE_EXHAUSTED",
        "many": "INVALID_ARGUMENT",
        "often": "RESOURCE_EXHAUSTED",
        "broken": "INTERNAL",
        "full": "RESOURCE_EXHAUSTED",
        "late": "TIMEOUT",
    }
    assert all(error["runId"] and error["correlationId"] and error["message"] for error in found.values())
    assert [what for what, error in found.items() if not error.get("details")] == ["unknown"]


class Untouchable(Mapping[str, Any]):
    """A mapping that does not let itself be read."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("no")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no")

    def __len__(self) -> int:
        raise RuntimeError("no")


@pytest.mark.requirement("FR-EXEC-007", "FND-CALL-12")
@pytest.mark.parametrize("dialect", ["structured", "envelope", "plain"])
@pytest.mark.parametrize(
    "details", [5, "text", ["a"], ("a", 1), {"a"}, object(), Untouchable()], ids=lambda each: type(each).__name__
)
async def test_details_that_are_no_mapping_are_left_out_and_never_raise(dialect: str, details: Any) -> None:
    @tool
    def raises() -> str:
        raise InvalidArgument("not so", details)

    @tool
    def sets() -> str:
        error = TimedOut("not so")
        error.details = details
        raise error

    async with open_server([raises, sets], {"response": {"dialect": dialect}}) as server:
        client = await server.client()
        for name in ("raises", "sets"):
            result = await client.call_tool(name, meta={IDEMPOTENCY_KEY: f"the key of {name:>10}"})
            again = await client.call_tool(name, meta={IDEMPOTENCY_KEY: f"the key of {name:>10}"})
            assert (result["isError"], again["isError"]) == (True, True)
            (text,) = result["content"]
            if not isinstance(details, Mapping) and dialect == "structured":
                assert "details" not in json.loads(text["text"])
        assert len(server.records) == 4
        assert all(record["outcome"] == "tool_error" for record in server.records)
