"""What holds for every call, whatever the client sends and whatever the handler does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dragoman
from dragoman import Text, ToolContext, ToolDefinition, define_tool
from dragoman.errors import NotFound
from dragoman.schemas import schema
from dragoman.testing import ManualClock, SequentialIds, TestServer, open_server
from dragoman.tools import catalogue
from dragoman.tools.tool import tool_of
from tests.support.answers import error_in
from tests.support.calls import Held, answers, begin
from tests.support.json_values import json_values
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

# Generators

INJECTIONS = [
    '"}],"isError":false}',
    '\n{"jsonrpc":"2.0","id":1,"result":{}}\n',
    "\r\nContent-Length: 0\r\n\r\n",
    "'; DROP TABLE calls; --",
    "${jndi:ldap://x}",
    "../../../etc/passwd",
    "\x1b[2J\x00\x7f\u2028\u202e\ufeff",
    "__proto__",
    "$ref",
]
text = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(INJECTIONS)
values = json_values(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    text,
    max_size=4,
    max_leaves=15,
)
arguments = st.dictionaries(text, values, max_size=5)
surrogates = st.text(st.characters(categories=["Cs"]), min_size=1, max_size=3)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def circle(size: int) -> list[Any]:
    ring: list[Any] = []
    inner = ring
    for _ in range(size):
        inner.append([])
        inner = inner[0]
    inner.append(ring)
    return ring


not_json = st.one_of(
    st.builds(object),
    st.integers(0, 5).map(circle),
    st.integers(100_000, 200_000).map(nested),
    surrogates,
    surrogates.map(lambda key: {key: 1}),
    st.just(iter("abc")),
    st.builds(lambda: {object(): 1}),
)

open_schema: dict[str, Any] = {"type": "object"}


def make(name: str, handler: Callable[..., Any], input_schema: dict[str, Any] | None = None) -> dragoman.Tool:
    definition = ToolDefinition(name=name, description="", input_schema=input_schema or open_schema)
    return define_tool(definition, handler)


async def give_back(given: dict[str, Any], context: ToolContext) -> Any:
    return given


def with_server(
    use: Callable[[TestServer], Awaitable[None]], tools: list[dragoman.Tool], config: Any = None, **options: Any
) -> None:
    """Run `use` on a server whose ids and times can be foreseen."""

    async def run() -> None:
        async with open_server(tools, config, **{"clock": ManualClock(), "ids": SequentialIds(), **options}) as server:
            await use(server)

    asyncio.run(run())


# The list

names = st.lists(
    st.from_regex(r"[A-Za-z0-9_./-]{1,12}", fullmatch=True).filter("health".__ne__), unique=True, max_size=10
)


@pytest.mark.requirement("FND-TEST-02")
@given(names=names, data=st.data())
def test_list_is_sorted_by_name_whatever_comes_and_goes(names: list[str], data: st.DataObject) -> None:
    """Property 4: `tools/list` returns all tools, sorted by name."""
    removed = data.draw(st.sets(st.sampled_from(names)) if names else st.just(set()))

    async def use(server: TestServer) -> None:
        client = await server.client()
        assert [entry["name"] for entry in await client.list_tools()] == sorted([*names, "health"])
        for name in removed:
            assert server.runtime.catalogue.unregister(name)
        left = sorted({*names, "health"} - removed)
        assert [entry["name"] for entry in await client.list_tools()] == left
        assert [definition.name for definition in server.runtime.catalogue.list()] == left

    with_server(use, [make(name, give_back) for name in names])


# The compiler

COMPILERS = [name for name in dir(jsonschema_rs) if name.endswith("Validator") and name != "Validator"] + [
    "validator_for",
    "is_valid",
    "iter_errors",
    "validate",
]


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Every use of anything that compiles a schema, by name."""
    seen: list[str] = []

    def counting(name: str, original: Any) -> Any:
        def compile_it(*given: Any, **options: Any) -> Any:
            seen.append(name)
            return original(*given, **options)

        return compile_it

    with pytest.MonkeyPatch.context() as patch:
        for name in COMPILERS:
            patch.setattr(jsonschema_rs, name, counting(name, getattr(jsonschema_rs, name)))
        for module in (schema, catalogue):
            patch.setattr(module, "compile_schema", counting("compile_schema", schema.compile_schema))
        yield seen


kinds = st.sampled_from(["string", "integer", "array", "object", "null"])
schemas = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(text, kinds.map(lambda kind: {"type": kind}), max_size=3),
    },
    optional={
        "$schema": st.sampled_from([schema.DRAFT_07, schema.DRAFT_2020_12]),
        "additionalProperties": st.booleans(),
        "required": st.lists(text, unique=True, max_size=2),
    },
)


@pytest.mark.requirement("FND-TEST-02", "FND-TEST-03", "FND-CALL-09", "FND-REG-08")
@given(
    input_schema=schemas,
    output_schema=st.none() | schemas,
    calls=st.lists(arguments | not_json, min_size=1, max_size=4),
)
def test_nothing_is_compiled_while_a_call_waits(
    input_schema: dict[str, Any], output_schema: dict[str, Any] | None, calls: list[Any]
) -> None:
    """Property 5: validators are compiled when a tool is registered, and never during `tools/call`."""
    definition = ToolDefinition(name="t", description="", input_schema=input_schema, output_schema=output_schema)

    async def use(server: TestServer) -> None:
        assert seen.count("compile_schema") >= 2  # The tool's own, and that of `health`.
        registered = len(seen)
        client = await server.client()
        for given_arguments in calls:
            if isinstance(given_arguments, dict):
                await server.runtime.call("t", given_arguments)
            await server.runtime.call("t", {"x": given_arguments})
            await client.call_tool("health")
            await client.list_tools()
        assert len(seen) == registered

    with compilations() as seen:
        with_server(use, [define_tool(definition, give_back)])


# Slots

steps = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "finish", "health"]),
        st.integers(0, 9),
        st.dictionaries(text, text, max_size=2),
    ),
    max_size=20,
)


@pytest.mark.requirement("FND-TEST-02", "FND-TEST-03", "FND-RES-08", "FND-CALL-08")
@given(limit=st.integers(1, 4), steps=steps)
def test_no_more_calls_run_than_there_are_slots(limit: int, steps: list[tuple[str, int, dict[str, Any]]]) -> None:
    """Property 7: a call too many is refused with RESOURCE_EXHAUSTED; every other one gets a slot and gives it back."""
    running: list[tuple[int | str, asyncio.Event]] = []
    begun: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def hold(given: dict[str, Any], context: ToolContext) -> Any:
        release = asyncio.Event()
        begun.put_nowait(release)
        await release.wait()
        return given

    async def use(server: TestServer) -> None:
        client, resources = await server.client(), server.runtime.slots
        try:
            for step, which, given_arguments in steps:
                if step == "start" and len(running) < limit:
                    call = begin(client, "hold", arguments=given_arguments)
                    running.append((call, await begun.get()))
                elif step == "start":
                    error = error_in(await client.call_tool("hold", given_arguments))
                    assert (error["code"], error["details"]["reason"]) == ("RESOURCE_EXHAUSTED", "no_free_slot")
                elif step == "finish" and running:
                    call, release = running.pop(which % len(running))
                    release.set()
                    assert (await client.answer(call))["result"]["isError"] is False
                elif step == "health":
                    report = json.loads((await client.call_tool("health"))["content"][0]["text"])
                    assert report["resources"]["concurrentExecutions"] == len(running)
                assert resources.in_use == len(running) <= limit
        finally:  # Or the server would wait for them, after each example that fails.
            for _, release in running:
                release.set()
        assert await server.runtime.runner.drain(PATIENCE)
        assert resources.in_use == 0

    with_server(use, [make("hold", hold)], {"resources": {"maxConcurrentExecutions": limit}})


# Deadlines

plans = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 200), st.integers(0, 300)).map(
        lambda plan: (plan[0], plan[0] + plan[1], plan[0] + plan[2] + 0.5)  # start, deadline and end, in milliseconds
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.requirement("FND-TEST-02", "FND-TIME-02", "FND-TIME-03", "FND-TIME-04", "FND-TIME-05")
@given(plans=plans)
@example(plans=[(0, 100, 300.5), (60, 160, 90.5), (70, 80, 200.5)])
@example(plans=[(18, 40, 18.5), (18, 190, 190.5)])  # The timer goes off a rounding error too early.
def test_each_deadline_answers_sets_the_token_and_leaves_the_slot_taken(
    plans: list[tuple[int, int, float]],
) -> None:
    """Property 8: TIMEOUT at the deadline, the token set, and the slot held until the handler has ended."""
    clock = ManualClock()
    moments = sorted({moment for start, deadline, end in plans for moment in (start, deadline, end)})
    tools: list[Held] = []

    async def use(server: TestServer) -> None:
        client, calls = await server.client(), {}
        for moment in moments:
            clock.advance(moment / 1000 - clock.monotonic())
            for held, (start, _, end) in zip(tools, plans, strict=True):
                if start == moment:
                    calls[held] = begin(client, tool_of(held.tool).name)
                    await held.begun.wait()
                elif end == moment:
                    held.release.set()
                    await held.ended.wait()
            clock.advance(0.00025)  # Past whatever falls due at this very moment.
            for held, (start, deadline, end) in zip(tools, plans, strict=True):
                if start <= moment:
                    expired = deadline <= moment and deadline < end
                    assert [token.is_set() for token in held.tokens] == [expired]
                    found = [answer["result"]["isError"] for answer in answers(client, calls[held])]
                    assert found == ([True] if expired else [False] if end <= moment else [])
            assert server.runtime.slots.in_use == sum(start <= moment < end for start, _, end in plans)
        assert sorted(record["outcome"] for record in server.records) == sorted(
            "late_completed" if deadline < end else "success" for _, deadline, end in plans
        )

    tools += [Held(f"hold{n}", timeout_ms=deadline - start) for n, (start, deadline, _) in enumerate(plans)]
    with_server(use, [held.tool for held in tools], clock=clock)


# Hostile clients


@pytest.mark.requirement("FND-TEST-03", "FND-CALL-05", "FND-RES-03")
@given(
    given_arguments=st.dictionaries(text, text | st.integers() | st.lists(text, max_size=3), max_size=5),
    slack=st.integers(-3, 3),
)
def test_arguments_pass_exactly_when_their_json_fits_the_limit(given_arguments: dict[str, Any], slack: int) -> None:
    size = len(json.dumps(given_arguments, ensure_ascii=False, separators=(",", ":")).encode())
    limit = max(1, size + slack)

    async def use(server: TestServer) -> None:
        result = await (await server.client()).call_tool("t", given_arguments)
        assert result["isError"] is (size > limit)
        assert len(server.records) == 1

    with_server(use, [make("t", give_back)], {"tools": {"maxPayloadBytes": limit}})


@pytest.mark.requirement("FND-TEST-03", "FND-CALL-12")
@given(given_arguments=arguments, meta=st.dictionaries(text, values, max_size=3))
def test_arguments_reach_the_handler_and_come_back_as_they_were_sent(
    given_arguments: dict[str, Any], meta: dict[str, Any]
) -> None:
    async def use(server: TestServer) -> None:
        client = await server.client()
        result = await client.call_tool("t", given_arguments, {f"x-{key}": value for key, value in meta.items()})
        assert result["isError"] is False
        assert json.loads(result["content"][0]["text"]) == given_arguments
        assert [record["outcome"] for record in server.records] == ["success"]
        assert len(client.received()) == 2

    with_server(use, [make("t", give_back)])


@pytest.mark.requirement("FND-TEST-03")
@given(
    depth=st.integers(0, 300) | st.integers(301, 200_000), brackets=st.sampled_from([(b"[", b"]"), (b'{"a":', b"}")])
)
def test_nesting_of_any_depth_is_answered_once_and_the_next_call_is_served(
    depth: int, brackets: tuple[bytes, bytes]
) -> None:
    opening, closing = brackets
    nest = opening * depth + b"1" + closing * depth
    line = (
        b'{"jsonrpc":"2.0","id":"deep","method":"tools/call","params":{"name":"t","arguments":{"x":' + nest + b"}}}\n"
    )

    async def use(server: TestServer) -> None:
        client = await server.client()
        client.send(line)
        assert (await client.call_tool("health"))["isError"] is False
        (answer,) = [message for message in client.received() if message["id"] not in (1, 2)]
        assert depth >= 200 or "result" in answer
        assert server.runtime.slots.in_use == 0

    with_server(use, [make("t", give_back)])


@pytest.mark.requirement("FND-TEST-03", "FND-CALL-06")
@given(value=not_json)
def test_arguments_that_are_not_json_never_reach_the_handler(value: Any) -> None:
    ran: list[Any] = []

    async def use(server: TestServer) -> None:
        outcome = await server.runtime.call("t", {"x": value})
        assert outcome.error is not None
        assert (outcome.error.code, ran) == ("INVALID_ARGUMENT", [])
        assert len(server.records) == 1

    with_server(use, [make("t", lambda given, context: ran.append(given))])


# Hostile handlers


@pytest.mark.requirement("FND-TEST-03", "FND-CALL-13")
@given(value=values | not_json | st.builds(Text, surrogates) | st.binary(max_size=5) | st.sets(st.integers()))
def test_whatever_a_handler_returns_is_answered_once_and_recorded_once(value: Any) -> None:
    async def use(server: TestServer) -> None:
        client = await server.client()
        result = await client.call_tool("t")
        if result["isError"]:
            assert error_in(result)["details"] == {"reason": "result_not_serializable"}
        else:
            json.loads(result["content"][0]["text"])
        assert len(client.received()) == 2
        assert [record["outcome"] for record in server.records] == ["tool_error" if result["isError"] else "success"]
        assert server.runtime.slots.in_use == 0

    with_server(use, [make("t", lambda given, context: value)])


@pytest.mark.requirement("FND-TEST-03", "FND-CALL-14")
@given(said=text | surrogates, kind=st.sampled_from([ValueError, KeyError, OSError, RecursionError, SystemExit]))
def test_text_of_an_exception_never_reaches_the_client(said: str, kind: type[BaseException]) -> None:
    async def fail(given: dict[str, Any], context: ToolContext) -> None:
        raise kind(f"secret-42 {said}")

    async def use(server: TestServer) -> None:
        client = await server.client()
        assert error_in(await client.call_tool("t"))["code"] == "INTERNAL"
        assert b"secret-42" not in b"".join(client.wire.lines)
        assert b"secret-42" in server.stderr
        assert all(isinstance(entry, dict) for entry in server.log)
        assert len(server.records) == 1

    with_server(use, [make("t", fail)])


@pytest.mark.requirement("FND-TEST-03", "FND-CALL-14")
@given(said=text | surrogates, details=st.none() | arguments | not_json.map(lambda value: {"x": value}))
def test_tool_error_with_any_text_and_details_is_answered_once(said: str, details: dict[str, Any] | None) -> None:
    async def refuse(given: dict[str, Any], context: ToolContext) -> None:
        raise NotFound(said, details)

    async def use(server: TestServer) -> None:
        client = await server.client()
        call = begin(client, "t")
        assert await server.runtime.runner.drain(PATIENCE)
        (answer,) = answers(client, call)
        assert error_in(answer["result"])["code"] == "NOT_FOUND"
        assert [record["outcome"] for record in server.records] == ["tool_error"]

    with_server(use, [make("t", refuse)])
