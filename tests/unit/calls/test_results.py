"""Results that are given again: whose, of which tools, for how long, and when not."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from dragoman import Image, ToolContext, tool
from dragoman.access.callers import Caller
from dragoman.errors import InvalidTool, NotFound, ResourceExhausted
from dragoman.testing import ManualClock, open_server
from tests.support.answers import error_in
from tests.support.calls import begin
from tests.support.waiting import PATIENCE, until

ADA, BEN = Caller("ada"), Caller("ben")


@dataclass
class Point:
    x: int


class Counter:
    """Tools around one number: two that read it, and some that change it."""

    def __init__(self, **caching: Any) -> None:
        self.value = 0
        self.reads = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing: BaseException | None = None
        self.tools = [
            tool(name="read", read_only=True, cache_ttl_ms=1000, cache_tags=("number",), **caching)(self._read),
            tool(name="write", invalidates=("number",))(self._write),
            tool(name="other", invalidates=("else",))(self._other),
        ]

    async def _read(self, context: ToolContext, key: str = "") -> dict[str, Any]:
        self.reads += 1
        seen = self.value
        await self.gate.wait()
        context.cancellation.raise_if_set()
        if self.failing is not None:
            raise self.failing
        return {"value": seen, "key": key}

    async def _write(self, value: int) -> None:
        self.value = value

    async def _other(self) -> None: ...


def value_in(result: dict[str, Any]) -> Any:
    assert result["isError"] is False, result
    return json.loads(result["content"][0]["text"])["value"]


async def test_second_call_with_the_same_arguments_is_not_executed() -> None:
    counter = Counter()
    async with open_server(counter.tools) as server:
        client = await server.client()
        first, second = [await client.call_tool("read", {"key": "a"}) for _ in range(2)]
        assert first["content"] == second["content"]
        assert first["structuredContent"] == second["structuredContent"]
        assert "dragoman/cached" not in first["_meta"]
        assert counter.reads == 1
        assert [record.get("cached", False) for record in server.records] == [False, True]
        await client.call_tool("read", {"key": "b"})
        assert counter.reads == 2


async def test_order_of_the_members_does_not_matter() -> None:
    calls: list[Any] = []

    @tool(idempotent=True, cache_ttl_ms=0)
    async def note(a: dict[str, int], b: int = 0) -> int:
        calls.append(a)
        return 1

    async with open_server([note]) as server:
        client = await server.client()
        await client.call_tool("note", {"a": {"x": 1, "y": 2}, "b": 1})
        await client.call_tool("note", {"b": 1, "a": {"y": 2, "x": 1}})
        assert len(calls) == 1
        await client.call_tool("note", {"b": 1, "a": {"y": 1, "x": 2}})
        assert len(calls) == 2


async def test_each_caller_has_results_of_its_own() -> None:
    counter = Counter()
    async with open_server(counter.tools) as server:
        for caller in (ADA, BEN, Caller("ada", frozenset({"admin"})), ADA, BEN):
            await (await server.client(caller)).call_tool("read")
        assert counter.reads == 3


@pytest.mark.parametrize("hints", [{}, {"read_only": False}, {"destructive": True}, {"idempotent": False}])
async def test_tool_that_may_change_things_cannot_ask_for_it(hints: dict[str, Any]) -> None:
    @tool(cache_ttl_ms=1000, **hints)
    async def change() -> None: ...

    with pytest.raises(InvalidTool, match="only results of tools that are read-only or idempotent can be kept"):
        async with open_server([change]):
            pass


@pytest.mark.parametrize(
    ("given", "said"),
    [({"read_only": True, "cache_ttl_ms": -1}, "at least 0"), ({"cache_tags": ("x",)}, "mean nothing without")],
)
async def test_caching_that_makes_no_sense_is_refused(given: dict[str, Any], said: str) -> None:
    @tool(**given)
    async def read() -> None: ...

    with pytest.raises(InvalidTool, match=said):
        async with open_server([read]):
            pass


@pytest.mark.parametrize("hints", [{"read_only": True}, {"idempotent": True}, {}])
async def test_tool_that_does_not_ask_for_it_is_always_executed(hints: dict[str, Any]) -> None:
    calls: list[int] = []

    @tool(**hints)
    async def read() -> int:
        calls.append(1)
        return len(calls)

    async with open_server([read]) as server:
        client = await server.client()
        for expected in (1, 2):
            assert json.loads((await client.call_tool("read"))["content"][0]["text"]) == expected


@pytest.mark.requirement("FND-LIFE-08")
async def test_result_lives_as_long_as_the_tool_says() -> None:
    clock, counter = ManualClock(), Counter()
    async with open_server(counter.tools, clock=clock) as server:
        client = await server.client()
        await client.call_tool("read")
        clock.advance(0.999)
        await client.call_tool("read")
        assert counter.reads == 1
        clock.advance(0.002)
        await client.call_tool("read")
        assert counter.reads == 2


async def test_tool_that_names_a_tag_makes_results_with_it_untrue_and_no_others() -> None:
    counter = Counter()
    async with open_server(counter.tools) as server:
        client = await server.client()
        assert value_in(await client.call_tool("read")) == 0
        await client.call_tool("other")
        await client.call_tool("read")
        assert counter.reads == 1
        await client.call_tool("write", {"value": 5})
        assert value_in(await client.call_tool("read")) == 5
        assert counter.reads == 2


async def test_change_that_fails_makes_results_untrue_too() -> None:
    counter = Counter()

    @tool(invalidates=("number",))
    async def half_done() -> None:
        counter.value = 7
        raise RuntimeError("too late")

    async with open_server([*counter.tools, half_done]) as server:
        client = await server.client()
        await client.call_tool("read")
        assert (await client.call_tool("half_done"))["isError"] is True
        assert value_in(await client.call_tool("read")) == 7


# Many at once


async def test_of_identical_calls_in_flight_one_is_executed() -> None:
    counter = Counter()
    counter.gate.clear()
    async with open_server(counter.tools, {"resources": {"max_concurrent_executions": 50}}) as server:
        client = await server.client()
        calls = [begin(client, "read") for _ in range(40)]
        await asyncio.sleep(0)
        counter.gate.set()
        results = [(await client.answer(call))["result"] for call in calls]
        assert counter.reads == 1
        assert {value_in(result) for result in results} == {0}
        assert len({result["_meta"]["dragoman/runId"] for result in results}) == 40
        assert len(server.records) == 40
        assert server.runtime.slots.in_use == 0


async def test_failure_is_everybody_s_who_waited_and_is_not_kept() -> None:
    counter = Counter()
    counter.gate.clear()
    counter.failing = NotFound("gone")
    async with open_server(counter.tools) as server:
        client = await server.client()
        calls = [begin(client, "read") for _ in range(3)]
        await asyncio.sleep(0)
        counter.gate.set()
        for call in calls:
            assert error_in((await client.answer(call))["result"])["message"] == "gone"
        assert counter.reads == 1
        counter.failing = None
        assert value_in(await client.call_tool("read")) == 0
        assert counter.reads == 2


async def test_exception_of_the_one_that_was_executed_is_internal_for_those_who_waited() -> None:
    counter = Counter()
    counter.gate.clear()
    counter.failing = RuntimeError("secret text")
    async with open_server(counter.tools) as server:
        client = await server.client()
        calls = [begin(client, "read") for _ in range(2)]
        await asyncio.sleep(0)
        counter.gate.set()
        for call in calls:
            answer = await client.answer(call)
            assert error_in(answer["result"])["code"] == "INTERNAL"
            assert "secret" not in json.dumps(answer)


async def test_when_the_executed_one_is_withdrawn_another_takes_its_place() -> None:
    counter = Counter()
    counter.gate.clear()
    async with open_server(counter.tools) as server:
        first, second = await server.client(), await server.client()
        leading, following = begin(first, "read"), begin(second, "read")
        await asyncio.sleep(0)
        first.notify("notifications/cancelled", {"requestId": leading})
        counter.gate.set()
        assert value_in((await second.answer(following))["result"]) == 0
        assert counter.reads == 2
        assert sorted(record["outcome"] for record in server.records) == ["aborted", "success"]


async def test_one_that_waits_has_a_deadline_of_its_own() -> None:
    clock, counter = ManualClock(), Counter(timeout_ms=1000)
    counter.gate.clear()
    async with open_server(counter.tools, clock=clock) as server:
        client = await server.client()
        leading = begin(client, "read")
        await asyncio.sleep(0)
        clock.advance(0.6)
        following = begin(client, "read")
        await asyncio.sleep(0)
        clock.advance(0.5)
        assert error_in((await client.answer(leading))["result"])["code"] == "TIMEOUT"
        assert not [message for message in client.received() if message.get("id") == following]
        clock.advance(0.5)
        assert error_in((await client.answer(following))["result"])["code"] == "TIMEOUT"
        counter.gate.set()
        await server.runtime.runner.drain(PATIENCE)
        assert len(server.records) == 2
        assert server.runtime.slots.in_use == 0


async def test_one_that_waits_can_be_withdrawn_without_disturbing_the_others() -> None:
    counter = Counter()
    counter.gate.clear()
    async with open_server(counter.tools) as server:
        client = await server.client()
        leading, following = begin(client, "read"), begin(client, "read")
        await asyncio.sleep(0)
        client.notify("notifications/cancelled", {"requestId": following})
        await until(lambda: server.records)
        assert [record["outcome"] for record in server.records] == ["aborted"]
        counter.gate.set()
        assert value_in((await client.answer(leading))["result"]) == 0


async def test_who_asks_after_a_change_is_not_given_what_was_read_before_it() -> None:
    counter = Counter()
    counter.gate.clear()
    async with open_server(counter.tools) as server:
        client = await server.client()
        early = begin(client, "read")
        await asyncio.sleep(0)
        await client.call_tool("write", {"value": 9})
        late = begin(client, "read")
        await asyncio.sleep(0)
        counter.gate.set()
        assert value_in((await client.answer(early))["result"]) == 0
        assert value_in((await client.answer(late))["result"]) == 9
        assert value_in(await client.call_tool("read")) == 9
        assert counter.reads == 2
        assert len(server.runtime.cache) == 1  # What nobody can be given any more takes no room.


async def test_another_tool_of_the_same_name_starts_anew() -> None:
    counter = Counter()
    async with open_server(counter.tools) as server:
        client = await server.client()
        await client.call_tool("read")
        server.runtime.catalogue.unregister("read")
        server.runtime.catalogue.register(counter.tools[0])
        await client.call_tool("read")
        assert counter.reads == 2


async def test_content_blocks_are_not_kept() -> None:
    drawn: list[int] = []

    @tool(read_only=True, cache_ttl_ms=0)
    async def draw() -> Image:
        drawn.append(1)
        return Image(b"x", mime_type="image/png")

    async with open_server([draw]) as server:
        client = await server.client()
        for _ in range(2):
            assert (await client.call_tool("draw"))["content"][0]["type"] == "image"
        assert len(drawn) == 2


async def test_result_that_cannot_be_sent_is_not_kept() -> None:
    @tool(read_only=True, cache_ttl_ms=0, output_schema={"type": "object"})
    async def odd() -> Any:
        return {"x": object()}

    async with open_server([odd]) as server:
        client = await server.client()
        for _ in range(2):
            assert error_in(await client.call_tool("odd"))["code"] == "INTERNAL"
        assert len(server.runtime.cache) == 0


async def test_one_that_hangs_after_its_deadline_does_not_keep_others_from_the_tool() -> None:
    clock, hanging = ManualClock(), asyncio.Event()
    runs: list[int] = []

    @tool(read_only=True, cache_ttl_ms=0, timeout_ms=1000)
    async def read() -> int:
        runs.append(1)
        if len(runs) == 1:
            await hanging.wait()
        return len(runs)

    async with open_server([read], clock=clock) as server:
        client = await server.client()
        leading, following = begin(client, "read"), begin(client, "read")
        await asyncio.sleep(0)
        clock.advance(1.5)
        assert error_in((await client.answer(leading))["result"])["code"] == "TIMEOUT"
        await client.answer(following)
        assert json.loads((await client.call_tool("read"))["content"][0]["text"]) >= 2
        hanging.set()
        await server.runtime.runner.drain(PATIENCE)
        assert server.runtime.slots.in_use == 0


async def test_calls_whose_result_cannot_be_shared_run_side_by_side() -> None:
    running, most = 0, 0
    gate = asyncio.Event()

    @tool(read_only=True, cache_ttl_ms=0)
    async def draw() -> Image:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gate.wait()
        await asyncio.sleep(0)
        running -= 1
        return Image(b"x", mime_type="image/png")

    async with open_server([draw]) as server:
        client = await server.client()
        calls = [begin(client, "draw") for _ in range(5)]
        await asyncio.sleep(0)
        gate.set()
        for call in calls:
            assert (await client.answer(call))["result"]["isError"] is False
        assert most == 4  # The first one alone, and then all the others.


async def test_result_that_does_not_fit_its_schema_is_not_kept() -> None:
    given = iter([{"n": "wrong"}, {"n": 1}])

    @tool(read_only=True, cache_ttl_ms=0, output_schema={"type": "object", "properties": {"n": {"type": "integer"}}})
    async def odd() -> Any:
        return next(given)

    async with open_server([odd]) as server:
        client = await server.client()
        assert error_in(await client.call_tool("odd"))["code"] == "INTERNAL"
        assert (await client.call_tool("odd"))["structuredContent"] == {"n": 1}


async def test_python_gets_the_same_value_whether_it_was_kept_or_not() -> None:
    @tool(read_only=True, cache_ttl_ms=0)
    async def where() -> Point:
        return Point(3)

    async with open_server([where]) as server:
        values = [(await server.runtime.call("where")).unwrap() for _ in range(2)]
        assert values == [{"x": 3}, {"x": 3}]


async def test_refusal_that_a_handler_raises_is_no_refusal_of_the_server_for_those_who_waited() -> None:
    counter = Counter()
    counter.gate.clear()
    counter.failing = ResourceExhausted("not here", {"retryable": True})
    async with open_server(counter.tools) as server:
        client = await server.client()
        calls = [begin(client, "read") for _ in range(5)]
        await asyncio.sleep(0)
        counter.gate.set()
        for call in calls:
            assert error_in((await client.answer(call))["result"])["message"] == "not here"
        assert server.runtime.slots.consecutive_refusals == 0
        assert not [record for record in server.records if "hint" in record]


@pytest.mark.parametrize("end", [{"whole": False}, NotFound("stopped half-way")])
async def test_what_a_call_comes_to_that_was_told_to_stop_is_nobody_else_s(end: dict[str, Any] | NotFound) -> None:
    runs: list[int] = []

    @tool(read_only=True, cache_ttl_ms=0)
    async def scan(context: ToolContext) -> dict[str, Any]:
        runs.append(1)
        if len(runs) > 1:
            return {"whole": True}
        await context.cancellation.wait()
        if isinstance(end, NotFound):
            raise end
        return end

    async with open_server([scan]) as server:
        first, second = await server.client(), await server.client()
        leading, following = begin(first, "scan"), begin(second, "scan")
        await asyncio.sleep(0)
        first.notify("notifications/cancelled", {"requestId": leading})
        assert (await second.answer(following))["result"]["structuredContent"] == {"whole": True}
        assert (await second.call_tool("scan"))["structuredContent"] == {"whole": True}
        assert len(runs) == 2


async def test_what_a_tool_returns_after_its_deadline_is_not_kept() -> None:
    clock, runs = ManualClock(), list[int]()

    @tool(read_only=True, cache_ttl_ms=0, timeout_ms=1000)
    async def scan(context: ToolContext) -> dict[str, Any]:
        runs.append(1)
        if len(runs) > 1:
            return {"whole": True}
        await context.cancellation.wait()
        return {"whole": False}

    async with open_server([scan], clock=clock) as server:
        client = await server.client()
        late = begin(client, "scan")
        await asyncio.sleep(0)
        clock.advance(1.5)
        assert error_in((await client.answer(late))["result"])["code"] == "TIMEOUT"
        await server.runtime.runner.drain(PATIENCE)
        assert (await client.call_tool("scan"))["structuredContent"] == {"whole": True}


async def test_results_may_depend_on_any_number_of_things() -> None:
    tags = tuple(f"tag {number}" for number in range(300))

    @tool(read_only=True, cache_ttl_ms=0, cache_tags=tags)
    async def read() -> dict[str, int]:
        return {"value": 1}

    async with open_server([read]) as server:
        client = await server.client()
        for cached in (False, True):
            result = await client.call_tool("read")
            assert result["structuredContent"] == {"value": 1}
            assert result["_meta"].get("dragoman/cached", False) is cached
