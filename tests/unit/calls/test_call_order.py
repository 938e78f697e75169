"""The ten steps of a call: what each one refuses, in which order, and what the answers look like."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import mcp_types
import pytest
from msgspec import Meta

import dragoman
from dragoman import Audio, EmbeddedResource, Image, ResourceLink, Text, ToolContext, ToolDefinition, define_tool, tool
from dragoman.calls.slots import Slots
from dragoman.errors import InternalFailure, InvalidArgument, NotFound, ResourceExhausted, ToolError, Unauthorized
from dragoman.testing import ManualClock, SequentialIds, open_server
from dragoman.tools.builtin.echo import echo_tool
from dragoman.tools.content import BlobResource, TextResource
from tests.support.answers import error_in
from tests.support.calls import Held, answers, begin, happened
from tests.support.waiting import PATIENCE

META = {"dragoman/runId": "run-1", "dragoman/correlationId": "corr-1", "dragoman/durationMs": 0.0}
OVERSIZED = {"message": "x" * 100}


def fixed() -> dict[str, Any]:
    """Options of a server whose ids and times can be foreseen."""
    return {"clock": ManualClock(), "ids": SequentialIds()}


@tool
async def double(n: int) -> int:
    """Twice the number."""
    return 2 * n


async def returning(value: Any) -> dict[str, Any]:
    """The result of a call to a tool that returns `value`."""
    given = define_tool(
        ToolDefinition(name="give", description="", input_schema={"type": "object"}), lambda arguments, context: value
    )
    async with open_server([given], **fixed()) as server:
        return await (await server.client()).call_tool("give")


# The order


@pytest.mark.requirement("FND-CALL-01")
async def test_stages_stand_in_the_order_of_the_contract() -> None:
    async with open_server() as server:
        assert [type(stage).__name__ for stage in server.runtime.stages] == [
            "RecordCompletion",
            "Admit",
            "CheckRequest",
            "FindTool",
            "CheckScopes",
            "LimitRate",
            "JoinRepeated",
            "OpenState",
            "TakeSlot",
            "ValidateArguments",
            "AskClient",
            "KeepOutcome",
            "EnforceDeadline",
            "ReuseResults",
        ]


@pytest.mark.requirement("FND-CALL-01")
@pytest.mark.parametrize(
    ("name", "arguments", "code", "reason"),
    [
        ("unknown", OVERSIZED, "RESOURCE_EXHAUSTED", "payload_too_large"),
        ("double", {"n": "x" * 100}, "RESOURCE_EXHAUSTED", "payload_too_large"),
        ("unknown", {"n": "no number"}, "NOT_FOUND", None),
        ("double", {"n": "no number"}, "RESOURCE_EXHAUSTED", "no_free_slot"),
    ],
)
async def test_call_that_is_wrong_in_several_ways_is_refused_for_the_earliest(
    name: str, arguments: dict[str, Any], code: str, reason: str | None
) -> None:
    held = Held()
    config = {"resources": {"maxConcurrentExecutions": 1}, "tools": {"maxPayloadBytes": 64}}
    async with open_server([held.tool, double], config) as server:
        client = await server.client()
        begin(client, "hold")
        await held.begun.wait()
        error = error_in(await client.call_tool(name, arguments))
        held.release.set()
    assert (error["code"], (error.get("details") or {}).get("reason")) == (code, reason)


@pytest.mark.requirement("FND-CALL-01", "FND-CALL-03")
async def test_misshapen_params_are_refused_before_anything_else_is_looked_at() -> None:
    async with open_server(config={"tools": {"maxPayloadBytes": 2}}, **fixed()) as server:
        client = await server.client()
        answer = await client.request("tools/call", {"name": "unknown", "arguments": ["x" * 100]})
        assert answer["error"]["code"] == -32602
        assert server.records == []


@pytest.mark.requirement("FND-CALL-02")
async def test_call_before_the_handshake_is_refused_and_uses_up_no_run_id() -> None:
    async with open_server([double], **fixed()) as server:
        client = server.connect()
        early = await client.request("tools/call", {"name": "double", "arguments": {"n": 1}})
        await client.initialize()
        half_way = await client.request("tools/call", {"name": "double", "arguments": {"n": 1}})
        client.initialized()
        result = await client.call_tool("double", {"n": 1})
        assert (early["error"]["code"], half_way["error"]["code"]) == (-32002, -32002)
        assert result["_meta"] == META
        assert [record["runId"] for record in server.records] == ["run-1"]
        assert server.runtime.slots.in_use == 0


@pytest.mark.requirement("FND-CALL-03")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"name": None},
        {"name": 7},
        {"name": ["count"]},
        {"name": "count", "arguments": None},
        {"name": "count", "arguments": []},
        {"name": "count", "arguments": "{}"},
        {"name": "count", "arguments": 0},
        {"name": "count", "arguments": True},
        {"name": "count", "_meta": None},
        {"name": "count", "_meta": []},
        {"name": "count", "_meta": "x"},
    ],
)
async def test_params_of_the_wrong_shape_are_invalid_params_and_run_nothing(params: dict[str, Any]) -> None:
    ran: list[str] = []

    @tool
    async def count() -> None:
        ran.append("count")

    async with open_server([count]) as server:
        client = await server.client()
        answer = await client.request("tools/call", params)
        assert (answer["id"], answer["error"]["code"]) == (2, -32602)
        assert (ran, server.records) == ([], [])
        assert (await client.call_tool("count"))["isError"] is False


@tool
async def fail() -> None:
    raise RuntimeError("the secret is 42")


@pytest.mark.requirement("FND-CALL-04")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("double", {"n": "x" * 100}), ("unknown", {}), ("double", {"n": "no number"}), ("fail", {})],
)
async def test_every_tool_error_carries_the_ids_of_its_call(name: str, arguments: dict[str, Any]) -> None:
    async with open_server([double, fail], {"tools": {"maxPayloadBytes": 64}}, **fixed()) as server:
        client = await server.client()
        made_up = error_in(await client.call_tool(name, arguments))
        given = error_in(await client.call_tool(name, arguments, {"correlationId": "mine"}))
    assert (made_up["runId"], made_up["correlationId"]) == ("run-1", "corr-1")
    assert (given["runId"], given["correlationId"]) == ("run-2", "mine")


@pytest.mark.requirement("FND-CALL-05")
async def test_arguments_exactly_at_the_limit_pass_counted_in_bytes_not_characters() -> None:
    arguments = {"message": "ä€😀"}
    size = len('{"message":""}') + 2 + 3 + 4
    for limit, refused in ((size, False), (size - 1, True)):
        async with open_server([echo_tool()], {"tools": {"maxPayloadBytes": limit}}) as server:
            result = await (await server.client()).call_tool("echo", arguments)
            assert result["isError"] is refused
    error = error_in(result)
    assert error["code"] == "RESOURCE_EXHAUSTED"
    assert error["details"] == {
        "reason": "payload_too_large",
        "limit": size - 1,
        "actual": size,
        "retryable": False,
        "setting": "tools.max_payload_bytes",
    }


@pytest.mark.requirement("FND-CALL-05")
@pytest.mark.parametrize(("limit", "refused"), [(2, False), (1, True)])
async def test_absent_arguments_count_as_an_empty_object(limit: int, refused: bool) -> None:
    async with open_server(config={"tools": {"maxPayloadBytes": limit}}) as server:
        client = await server.client()
        answer = await client.request("tools/call", {"name": "health"})
        assert answer["result"]["isError"] is refused


def circular() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def deep() -> list[Any]:
    nest: list[Any] = []
    for _ in range(100_000):
        nest = [nest]
    return nest


NOT_JSON: dict[str, Callable[[], Any]] = {
    "object": object,
    "circular": circular,
    "deep": deep,
    "surrogate": lambda: "\ud800",
    "surrogate_key": lambda: {"\ud800": 1},
    "object_key": lambda: {object(): 1},
    "generator": lambda: (n for n in range(3)),
}


@pytest.mark.requirement("FND-CALL-06")
@pytest.mark.parametrize("kind", NOT_JSON)
async def test_arguments_that_are_not_json_are_invalid(kind: str) -> None:
    async with dragoman.open([echo_tool()]) as runtime:
        outcome = await runtime.call("echo", {"message": NOT_JSON[kind]()})
    assert isinstance(outcome.error, InvalidArgument)
    assert outcome.error.details == {"reason": "arguments_not_serializable"}


@pytest.mark.requirement("FND-CALL-07")
async def test_unknown_tool_is_a_tool_error() -> None:
    async with open_server(**fixed()) as server:
        result = await (await server.client()).call_tool("Health")
    assert result["_meta"] == META
    assert error_in(result) == {
        "code": "NOT_FOUND",
        "message": "Unknown tool: Health",
        "runId": "run-1",
        "correlationId": "corr-1",
    }


@pytest.mark.requirement("FND-CALL-08")
async def test_call_without_a_free_slot_is_refused_at_once_and_counted() -> None:
    held = Held()
    async with open_server([held.tool], {"resources": {"maxConcurrentExecutions": 1}}, **fixed()) as server:
        client = await server.client()
        first = begin(client, "hold")
        await held.begun.wait()
        error = error_in(await client.call_tool("hold"))
        refusals = server.runtime.slots.consecutive_refusals
        held.release.set()
        await client.answer(first)
        assert await server.runtime.runner.drain(PATIENCE)
    assert error == {
        "code": "RESOURCE_EXHAUSTED",
        "message": "All 1 slots are taken",
        "details": {
            "reason": "no_free_slot",
            "limit": 1,
            "retryable": True,
            "setting": "resources.max_concurrent_executions",
        },
        "runId": "run-2",
        "correlationId": "corr-2",
    }
    assert refusals == 1
    assert held.finished == 1  # The refused call was not kept for later.


@pytest.mark.requirement("FND-CALL-09", "INV-MCP-LIMIT-002")
async def test_arguments_that_do_not_fit_are_refused_with_the_validators_findings() -> None:
    ran: list[int] = []

    @tool
    async def pair(a: int, b: int) -> None:
        ran.append(a)

    async with open_server([pair]) as server:
        error = error_in(await (await server.client()).call_tool("pair", {"a": "one", "c": 3}))
        assert server.runtime.slots.in_use == 0
    assert error["code"] == "INVALID_ARGUMENT"
    assert {finding["path"] for finding in error["details"]["errors"]} == {"/a", "/b", "/c"}
    assert "one" not in json.dumps(error)  # The values may be secret.
    assert ran == []


@pytest.mark.requirement("FND-CALL-10")
async def test_handler_gets_its_arguments_and_a_context_and_nothing_of_meta() -> None:
    seen: list[Any] = []

    async def handler(arguments: dict[str, Any], context: ToolContext) -> None:
        seen.append((arguments, context.run_id, context.correlation_id, context.cancellation.is_set()))

    schema = {"type": "object", "properties": {"correlationId": {"type": "string"}}}
    look = define_tool(ToolDefinition(name="look", description="", input_schema=schema), handler)
    async with open_server([look], **fixed()) as server:
        client = await server.client()
        await client.call_tool("look", {"correlationId": "input"}, {"correlationId": "mine", "other": 1})
    assert seen == [({"correlationId": "input"}, "run-1", "mine", False)]


# The slot


@pytest.mark.requirement("FND-CALL-11")
@pytest.mark.parametrize("arguments", [{"n": 1}, {"n": "x"}, {"n": -1}, {"n": -2}, {"n": -3}, {"n": -4}])
@pytest.mark.parametrize("name", ["on_loop", "on_thread"])
async def test_slot_comes_back_however_the_call_ends(name: str, arguments: dict[str, Any]) -> None:
    def work(n: int) -> Any:
        if n == -1:
            raise NotFound("no such thing")
        if n == -2:
            raise RuntimeError
        if n == -3:
            return object()
        if n == -4:
            sys.exit(1)
        return n

    @tool
    async def on_loop(n: int) -> Any:
        return work(n)

    @tool
    def on_thread(n: int) -> Any:
        return work(n)

    async with open_server([on_loop, on_thread], {"resources": {"maxConcurrentExecutions": 1}}) as server:
        client = await server.client()
        for _ in range(3):
            result = await client.call_tool(name, arguments)
            assert result["isError"] is (arguments != {"n": 1})
            assert server.runtime.slots.in_use == 0
        assert len(server.records) == 3


# Results


@pytest.mark.requirement("FND-CALL-12")
@pytest.mark.parametrize("value", [{"a": [1, None]}, [1, 2], [], "ünï😀\n", "", 3, 2.5, 10**30, True, None])
async def test_result_is_its_json_text(value: Any) -> None:
    result = await returning(value)
    (block,) = result.pop("content")
    assert result == {"isError": False, "_meta": META}
    assert (block.pop("type"), json.loads(block.pop("text")), block) == ("text", value, {})


class Faulty:
    """Looks like a model, and fails when it is written."""

    def model_dump(self, **options: Any) -> Any:
        raise KeyError("the secret is 42")


@pytest.mark.requirement("FND-CALL-13")
@pytest.mark.parametrize("make", [*NOT_JSON.values(), Faulty], ids=[*NOT_JSON, "faulty_model"])
async def test_result_that_is_not_json_is_an_internal_error(make: Callable[[], Any]) -> None:
    assert error_in(await returning(make())) == {
        "code": "INTERNAL",
        "message": "Result not serializable",
        "details": {"reason": "result_not_serializable"},
        "runId": "run-1",
        "correlationId": "corr-1",
    }


PNG = b"\x89PNG"
SDK_BLOCKS = [
    mcp_types.ImageContent(type="image", data="iVBORw==", mime_type="image/png"),
    mcp_types.TextContent(type="text", text="x", _meta={"kept": None}),
]


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (Text("hi"), [{"type": "text", "text": "hi"}]),
        (Image(PNG), [{"type": "image", "data": "iVBORw==", "mimeType": "image/png"}]),
        (Image(PNG, "image/gif"), [{"type": "image", "data": "iVBORw==", "mimeType": "image/gif"}]),
        (Audio(PNG), [{"type": "audio", "data": "iVBORw==", "mimeType": "audio/wav"}]),
        (Audio(PNG, "audio/ogg"), [{"type": "audio", "data": "iVBORw==", "mimeType": "audio/ogg"}]),
        (
            ResourceLink("file:///a", "a", size=0),
            [{"type": "resource_link", "uri": "file:///a", "name": "a", "size": 0}],
        ),
        (
            EmbeddedResource(TextResource("file:///a", "hi", "text/plain"), annotations={"priority": 1}),
            [
                {
                    "type": "resource",
                    "resource": {"uri": "file:///a", "text": "hi", "mimeType": "text/plain"},
                    "annotations": {"priority": 1},
                }
            ],
        ),
        (
            EmbeddedResource(BlobResource("file:///a", PNG), meta={"k": "v"}),
            [{"type": "resource", "resource": {"uri": "file:///a", "blob": "iVBORw=="}, "_meta": {"k": "v"}}],
        ),
        (
            [Text("a", meta={"k": None}), Image(PNG)],
            [
                {"type": "text", "text": "a", "_meta": {"k": None}},
                {"type": "image", "data": "iVBORw==", "mimeType": "image/png"},
            ],
        ),
        (
            SDK_BLOCKS,
            [
                {"type": "image", "data": "iVBORw==", "mimeType": "image/png"},
                {"type": "text", "text": "x", "_meta": {"kept": None}},
            ],
        ),
        ({"type": "text", "text": "hi"}, [{"type": "text", "text": '{"type":"text","text":"hi"}'}]),
        ([Text("a"), 1], [{"type": "text", "text": '[{"type":"text","text":"a"},1]'}]),
    ],
)
async def test_content_blocks_pass_unchanged_and_nothing_else_is_taken_for_one(value: Any, content: Any) -> None:
    assert await returning(value) == {"content": content, "isError": False, "_meta": META}


@dataclass
class Point:
    x: int
    y: int


@tool
async def typed(x: Any) -> Point:
    return Point(x, 2)


@tool
async def untyped(x: Any):
    return {"x": x, "y": 2}


async def test_structured_content_is_there_exactly_when_there_is_an_output_schema() -> None:
    async with open_server([typed, untyped, fail], **fixed()) as server:
        client = await server.client()
        with_schema = await client.call_tool("typed", {"x": 1})
        without = await client.call_tool("untyped", {"x": 1})
        failed = await client.call_tool("fail")
    assert with_schema["structuredContent"] == json.loads(with_schema["content"][0]["text"]) == {"x": 1, "y": 2}
    assert with_schema["isError"] is False
    assert json.loads(without["content"][0]["text"]) == {"x": 1, "y": 2}
    assert "structuredContent" not in without
    assert "structuredContent" not in failed


@pytest.mark.parametrize("value", ["no number", None, 1.5])
async def test_result_that_breaks_its_output_schema_is_an_internal_error(value: Any) -> None:
    async with open_server([typed]) as server:
        result = await (await server.client()).call_tool("typed", {"x": value})
        assert [record["outcome"] for record in server.records] == ["tool_error"]
    error = error_in(result)
    assert (error["code"], error["details"]["reason"]) == ("INTERNAL", "result_does_not_match_schema")
    assert [finding["path"] for finding in error["details"]["errors"]] == ["/x"]
    assert "structuredContent" not in result


# Failures


class Panic(BaseException):
    """What a panic in an extension written in Rust arrives as."""


def _raise(error: BaseException) -> None:
    raise error


FAILURES: dict[str, Callable[[], Any]] = {
    "exception": lambda: _raise(ValueError("secret-42")),
    "group": lambda: _raise(ExceptionGroup("secret-42", [OSError("secret-42")])),
    "stop_iteration": lambda: _raise(StopIteration("secret-42")),
    "exit": lambda: sys.exit("secret-42"),
    "cancelled": lambda: _raise(asyncio.CancelledError("secret-42")),
    "panic": lambda: _raise(Panic("secret-42")),
    "aborted_without_a_reason": lambda: _raise(dragoman.errors.Aborted("secret-42")),
    "assertion": lambda: _raise(AssertionError("secret-42")),
    "recursion": lambda: _raise(RecursionError("secret-42")),
}


@pytest.mark.requirement("FND-CALL-14")
@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_exception_of_a_handler_is_internal_and_its_text_stays_in_the_log(kind: str, where: str) -> None:
    @tool(name="broken")
    async def on_loop() -> None:
        FAILURES[kind]()

    @tool(name="broken")
    def on_thread() -> None:
        FAILURES[kind]()

    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    async with open_server([on_loop if where == "loop" else on_thread, double], **fixed()) as server:
        client = await server.client()
        call = begin(client, "broken")
        assert await server.runtime.runner.drain(PATIENCE)
        (answer,) = answers(client, call)
        error = error_in(answer["result"])
        assert error == {
            "code": "INTERNAL",
            "message": "The tool failed",
            "details": {"reason": "handler_exception"},
            "runId": "run-1",
            "correlationId": "corr-1",
        }
        assert b"secret-42" not in b"".join(client.wire.lines)
        assert [record["outcome"] for record in server.records] == ["tool_error"]
        assert [entry["runId"] for entry in server.log if entry["level"] == "error"] == ["run-1"]
        assert (await client.call_tool("double", {"n": 2}))["content"][0]["text"] == "4"
    assert unhandled == []


@pytest.mark.requirement("FND-CALL-14")
async def test_handler_that_cancels_its_own_task_is_answered_all_the_same() -> None:
    @tool
    async def self_cancelling() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async with open_server([self_cancelling]) as server:
        client = await server.client()
        call = begin(client, "self_cancelling")
        assert await server.runtime.runner.drain(PATIENCE)
        (answer,) = answers(client, call)
        error = error_in(answer["result"])
        assert error["code"] == "INTERNAL"
        assert [record["outcome"] for record in server.records] == ["tool_error"]
        assert server.runtime.slots.in_use == 0


@pytest.mark.requirement("FND-CALL-14")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("no such page", {"page": 7}), "NOT_FOUND"),
        (InvalidArgument("not on a Sunday"), "INVALID_ARGUMENT"),
        (Unauthorized("ask an owner"), "UNAUTHORIZED"),
        (ResourceExhausted("the quota is used up"), "RESOURCE_EXHAUSTED"),
        (InternalFailure("the printer is on fire"), "INTERNAL"),
        (ToolError("it will not do"), "INTERNAL"),
    ],
)
async def test_tool_error_of_a_handler_reaches_the_client_with_its_own_message(error: ToolError, code: str) -> None:
    @tool
    async def refuse() -> None:
        raise error

    async with open_server([refuse], **fixed()) as server:
        answer = error_in(await (await server.client()).call_tool("refuse"))
        assert [record["errorCode"] for record in server.records] == [code]
    expected: dict[str, Any] = {"code": code, "message": error.message, "runId": "run-1", "correlationId": "corr-1"}
    assert answer == (expected if error.details is None else {**expected, "details": error.details})


@pytest.mark.requirement("FND-CALL-14")
@pytest.mark.parametrize(
    "error",
    [
        NotFound("no such page", {"page": object()}),
        NotFound("no such page", {"page": "\ud800"}),
        NotFound("no such page: \ud800"),
        NotFound(OSError("no such page")),  # type: ignore[arg-type]
    ],
    ids=["object_in_details", "surrogate_in_details", "surrogate_in_message", "message_is_an_exception"],
)
async def test_tool_error_that_is_not_json_is_answered_all_the_same(error: ToolError) -> None:
    @tool
    async def refuse() -> None:
        raise error

    async with open_server([refuse]) as server:
        client = await server.client()
        call = begin(client, "refuse")
        assert await server.runtime.runner.drain(PATIENCE)
        (answer,) = answers(client, call)
        told = error_in(answer["result"])
        assert (told["code"], told["message"][:12]) == ("NOT_FOUND", "no such page")
        assert [record["outcome"] for record in server.records] == ["tool_error"]


class Explosive:
    """An argument type whose conversion fails in a way that nobody foresaw."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object"}

    @classmethod
    def model_validate(cls, value: Any) -> Explosive:
        raise KeyError("secret-42")


@pytest.mark.requirement("FND-CALL-14")
async def test_argument_type_that_fails_by_itself_is_the_tools_failure_and_its_text_stays_in_the_log() -> None:
    @tool
    async def explode(x: Explosive) -> None: ...

    async with open_server([explode], **fixed()) as server:
        client = await server.client()
        told = error_in(await client.call_tool("explode", {"x": {}}))
        assert (told["code"], told["message"]) == ("INTERNAL", "The tool failed")
        assert b"secret-42" in server.stderr


class Broken(Slots):
    """Fails where nothing of ours should."""

    @property
    def limit(self) -> int:
        raise RuntimeError("a defect")

    @limit.setter
    def limit(self, value: int) -> None: ...


@pytest.mark.requirement("FND-CALL-11", "FND-RPC-08")
async def test_failure_outside_the_tool_is_a_protocol_error_with_one_record() -> None:
    async with open_server([echo_tool()], **fixed(), slots=Broken()) as server:
        client = await server.client()
        error = await client.call_tool("echo", {"message": "hi"})
        assert error == {"code": -32603, "message": "Internal error", "data": {"correlationId": "corr-1"}}
        assert [(each["outcome"], each["errorCode"]) for each in server.records] == [("protocol_error", "-32603")]
        assert server.runtime.slots.in_use == 0
        assert (await client.list_tools())[0]["name"] == "echo"


@pytest.mark.requirement("FND-CALL-14")
@pytest.mark.parametrize("is_sync", [False, True], ids=["loop", "thread"])
async def test_handler_that_raises_generator_exit_is_answered_and_recorded(is_sync: bool) -> None:
    async def on_the_loop() -> None:
        raise GeneratorExit

    def on_a_thread() -> None:
        raise GeneratorExit

    async with open_server([tool(name="leave")(on_a_thread if is_sync else on_the_loop)]) as server:
        told = error_in(await (await server.client()).call_tool("leave"))
        assert told["code"] == "INTERNAL"
        assert [record["outcome"] for record in server.records] == ["tool_error"]


class Speechless(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise Speechless


@pytest.mark.requirement("FND-CALL-14")
async def test_exception_that_cannot_say_what_it_is_is_an_internal_tool_error() -> None:
    @tool
    async def mumble() -> None:
        raise Speechless

    async with open_server([mumble]) as server:
        told = error_in(await (await server.client()).call_tool("mumble"))
        assert told["code"] == "INTERNAL"
        assert [record["outcome"] for record in server.records] == ["tool_error"]


@dataclass(frozen=True)
class Frozen(Exception):
    """Nothing of it can be set."""


@pytest.mark.parametrize("is_grouped", [False, True])
async def test_exception_that_cannot_be_changed_is_an_internal_tool_error(is_grouped: bool) -> None:
    @tool
    async def freeze() -> None:
        raise ExceptionGroup("one", [Frozen()]) if is_grouped else Frozen()

    async with open_server([freeze]) as server:
        assert error_in(await (await server.client()).call_tool("freeze"))["code"] == "INTERNAL"
        assert [record["outcome"] for record in server.records] == ["tool_error"]


@pytest.mark.parametrize("message", [42, None, ValueError("secret-word")])
async def test_error_whose_message_is_no_text_is_told_where_arguments_are_sensitive(message: Any) -> None:
    @tool
    async def log_in(word: Annotated[str, Meta(extra_json_schema={"x-sensitive": True})]) -> None:
        raise NotFound(message)

    async with open_server([log_in]) as server:
        told = error_in(await (await server.client()).call_tool("log_in", {"word": "secret-word"}))
        assert told["code"] == "NOT_FOUND"
        assert "secret-word" not in str(told)


async def test_error_meant_for_the_client_reaches_it_from_inside_a_task_group() -> None:
    async def child() -> None:
        raise NotFound("no such page")

    @tool
    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    async with open_server([grouped]) as server:
        told = error_in(await (await server.client()).call_tool("grouped"))
        assert (told["code"], told["message"]) == ("NOT_FOUND", "no such page")


async def test_tool_annotated_to_return_a_content_block_returns_it() -> None:
    @tool
    async def picture() -> dragoman.Image:
        return dragoman.Image(b"png")

    @tool
    async def album() -> list[dragoman.Image | dragoman.Text]:
        return [dragoman.Text("one"), dragoman.Image(b"png")]

    async with open_server([picture, album]) as server:
        client = await server.client()
        assert [entry.get("outputSchema") for entry in await client.list_tools()] == [None, None, None]
        image = {"type": "image", "data": "cG5n", "mimeType": "image/png"}
        assert (await client.call_tool("picture"))["content"] == [image]
        assert (await client.call_tool("album"))["content"] == [{"type": "text", "text": "one"}, image]


@pytest.mark.requirement("FND-CALL-13")
async def test_result_that_no_client_could_be_sent_is_no_success_for_python_either() -> None:
    @tool
    async def odd() -> object:
        return object()

    async with open_server([odd]) as server:
        outcome = await server.runtime.call("odd")
        assert outcome.error is not None
        assert outcome.error.message == "Result not serializable"
        assert [record["outcome"] for record in server.records] == ["tool_error"]
        assert b"has no JSON form" in server.stderr


# Listing


@pytest.mark.requirement("FND-CALL-15")
async def test_list_shows_every_tool_by_name_and_its_version_only_when_it_has_one() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}

    def listed(name: str, version: str | None = None) -> dragoman.Tool:
        definition = ToolDefinition(name=name, description=f"about {name}", input_schema=schema, version=version)
        return define_tool(definition, lambda arguments, context: None)

    async with open_server([listed("zeta", "1.2"), listed("alpha"), listed("Beta")]) as server:
        tools = await (await server.client()).list_tools()
    assert [entry["name"] for entry in tools] == ["Beta", "alpha", "health", "zeta"]
    assert tools[1] == {"name": "alpha", "description": "about alpha", "inputSchema": schema}
    assert tools[3] == {"name": "zeta", "description": "about zeta", "inputSchema": schema, "version": "1.2"}


# Progress


@pytest.mark.parametrize("token", ["t", 7, 0])
@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_progress_reaches_a_client_that_gave_a_token_before_the_answer(where: str, token: str | int) -> None:
    def report(context: ToolContext) -> str:
        context.progress(1)
        context.progress(2, 3, "nearly")
        return "done"

    @tool(name="work")
    async def on_loop(context: ToolContext) -> str:
        return report(context)

    @tool(name="work")
    def on_thread(context: ToolContext) -> str:
        return report(context)

    async with open_server([on_loop if where == "loop" else on_thread], **fixed()) as server:
        client = await server.client()
        await client.call_tool("work", meta={"progressToken": token})
        await client.call_tool("work")
        await client.call_tool("work", meta={"progressToken": None})
    first, second, *rest = client.received()[1:]
    assert first == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": token, "progress": 1},
    }
    assert second["params"] == {"progressToken": token, "progress": 2, "total": 3, "message": "nearly"}
    assert [message.get("id") for message in rest] == [2, 3, 4]


async def test_progress_after_the_answer_is_not_sent() -> None:
    clock = ManualClock()
    contexts: list[ToolContext] = []
    late = threading.Event()

    @tool(timeout_ms=10)
    async def on_loop(context: ToolContext) -> None:
        contexts.append(context)

    @tool(timeout_ms=10)
    def on_thread(context: ToolContext) -> None:
        assert late.wait(PATIENCE)
        context.progress(1)

    async with open_server([on_loop, on_thread], clock=clock) as server:
        client = await server.client()
        await client.call_tool("on_loop", meta={"progressToken": "t"})
        contexts[0].progress(1)
        begin(client, "on_thread", _meta={"progressToken": "t"})
        await asyncio.sleep(0)
        clock.advance(0.02)
        late.set()
        assert await server.runtime.runner.drain(PATIENCE)
    assert [message.get("id") for message in client.received()] == [1, 2, 3]


async def test_progress_is_dropped_while_the_client_does_not_keep_up() -> None:
    @tool
    async def work(context: ToolContext) -> None:
        context.progress(1)

    async with open_server([work]) as server:
        client = await server.client()
        client.wire.is_full = True
        result = await client.call_tool("work", meta={"progressToken": "t"})
    assert result["isError"] is False
    assert [message.get("id") for message in client.received()] == [1, 2]


async def test_result_of_a_thread_that_is_an_awaitable_is_awaited_on_the_loop() -> None:
    threads: list[int] = []
    awaited = threading.Event()

    async def rest() -> str:
        threads.append(threading.get_ident())
        awaited.set()
        return "both halves"

    def handler(arguments: dict[str, Any], context: ToolContext) -> Any:
        threads.append(threading.get_ident())
        return rest()

    halves = define_tool(ToolDefinition(name="halves", description="", input_schema={"type": "object"}), handler)
    async with open_server([halves]) as server:
        result = await (await server.client()).call_tool("halves")
        await happened(awaited)
    assert result["content"] == [{"type": "text", "text": '"both halves"'}]
    assert [ident == threading.get_ident() for ident in threads] == [False, True]
