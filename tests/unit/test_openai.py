"""Native tools as OpenAI tools, and the calls of a model, checked against the types of the `openai` package."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import re
import sys
from dataclasses import dataclass
from subprocess import run
from types import ModuleType
from typing import Annotated, Any

import pytest
from httpx2 import AsyncClient, MockTransport, Request, Response
from openai import AsyncOpenAI
from openai.types.chat import (
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageCustomToolCall,
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionToolMessageParam,
)
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall
from openai.types.responses.response_input_param import FunctionCallOutput
from openai.types.shared_params import FunctionDefinition
from pydantic import ConfigDict, TypeAdapter, with_config

import dragoman
from dragoman import (
    Ask,
    Audio,
    Caller,
    EmbeddedResource,
    Image,
    ResourceLink,
    Text,
    TextResource,
    ToolContext,
    ToolDefinition,
    call_openai_tool,
    define_tool,
    openai_tools,
    tool,
)
from dragoman.errors import InvalidTool
from dragoman.openai import Remark
from dragoman.testing import open_server

REFUSED = "refused by OpenAI in strict mode"


@dataclass
class Size:
    width: int
    unit: str = "px"


@tool(name="image.resize", idempotent=True)
def resize(name: str, size: Size, more: Annotated[list[Size], "further sizes"] = []) -> dict[str, Any]:  # noqa: B006
    """Resizes an image."""
    return {"name": name, "width": size.width, "unit": size.unit, "more": len(more)}


@tool
def count(to: int = 3) -> int:
    """Counts."""
    return to


@tool
async def whoami(context: ToolContext) -> dict[str, Any]:
    """Names the caller."""
    return {"caller": context.caller.name}


@tool
async def fail() -> dict[str, Any]:
    """Fails."""
    raise RuntimeError("hunter2")


@tool
async def wait(context: ToolContext) -> dict[str, Any]:
    """Waits until it is cancelled."""
    await context.cancellation.wait()
    return {}


SIZE = {
    "title": "Size",
    "type": "object",
    "properties": {"width": {"type": "integer"}, "unit": {"type": ["string", "null"]}},
    "required": ["width", "unit"],
    "additionalProperties": False,
}


def of_name(name: str, result: Any = None) -> Any:
    """A tool of any name, valid or not."""
    definition = ToolDefinition(name=name, description="", input_schema={"type": "object"})
    return define_tool(definition, lambda arguments, _: {"ran": name} if result is None else result)


def of_schema(schema: dict[str, Any]) -> Any:
    return define_tool(ToolDefinition(name="a.tool", description="", input_schema=schema), lambda given, _: given)


def conforms(value: Any, shape: Any) -> None:
    """Fail unless the value is valid for a typed dict of the package, without unknown keys."""
    TypeAdapter(with_config(ConfigDict(extra="forbid"))(shape)).validate_python(value, strict=True)


def names(tools: list[dict[str, Any]]) -> list[str]:
    return [each["function"]["name"] for each in tools]


# The tools


def test_a_tool_has_its_name_description_and_schema() -> None:
    assert openai_tools([count]) == [
        {
            "type": "function",
            "function": {
                "name": "count",
                "description": "Counts.",
                "parameters": {
                    "type": "object",
                    "properties": {"to": {"type": "integer", "default": 3}},
                    "required": [],
                    "additionalProperties": False,
                },
            },
        }
    ]


@pytest.mark.parametrize("strict", [True, False])
def test_tools_are_valid_for_the_package_in_both_forms(strict: bool) -> None:
    tools = [resize, count, whoami]
    chat = openai_tools(tools, strict=strict, embed_annotations=True)
    responses = openai_tools(tools, strict=strict, embed_annotations=True, api="responses")
    for nested, flat in zip(chat, responses, strict=True):
        conforms(nested, ChatCompletionFunctionToolParam)
        conforms(nested["function"], FunctionDefinition)
        conforms(flat, FunctionToolParam)
        assert flat == {"type": "function", "strict": strict, **nested["function"]}
        assert nested["function"].get("strict", False) is strict


def test_a_runtime_a_list_a_module_and_a_single_tool_give_the_same_tools() -> None:
    module = ModuleType("shop")
    vars(module).update(resize=resize, again=resize, count=count, Size=Size, number=7, function=len)
    runtime = dragoman.create_server(dragoman.ServerOptions(tools=[resize, count], has_health=False))
    by_name = openai_tools([count, resize])
    assert openai_tools(runtime) == by_name
    assert openai_tools(module) == openai_tools((resize, count, resize)) == [by_name[1], by_name[0]]
    assert openai_tools(count) == by_name[:1]


def test_a_module_with_a_wrapped_tool_is_refused() -> None:
    module = ModuleType("shop")
    vars(module).update(resize=functools.wraps(resize)(lambda *arguments: None))
    with pytest.raises(InvalidTool, match="another decorator is above @tool"):
        openai_tools(module)


@pytest.mark.parametrize("value", [len, 7, "count", [count, len], None])
def test_a_value_that_is_not_a_tool_is_refused(value: Any) -> None:
    with pytest.raises(InvalidTool, match="decorate it with @tool"):
        openai_tools(value)


def test_in_strict_mode_every_object_is_closed_and_its_references_are_inlined() -> None:
    report: list[Remark] = []
    [made] = openai_tools(resize, strict=True, report=report)
    assert made["function"]["strict"] is True
    assert made["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "size": SIZE,
            "more": {"type": ["array", "null"], "description": "further sizes", "items": SIZE},
        },
        "required": ["name", "size", "more"],
        "additionalProperties": False,
    }
    assert {remark.path for remark in report} >= {"/properties/size/properties/unit/default"}
    assert {remark.message for remark in report} == {"default is dropped"}


@pytest.mark.parametrize(
    ("property", "message", "path"),
    [
        ({"type": "object"}, None, None),
        ({"type": "array"}, f"an array without items is {REFUSED}", "/properties/p"),
        ({}, f"a schema without a type is {REFUSED}", "/properties/p"),
        (
            {"type": "array", "prefixItems": [{"type": "null"}]},
            f"prefixItems is {REFUSED}",
            "/properties/p/prefixItems",
        ),
        ({"oneOf": [{"type": "null"}]}, f"oneOf is {REFUSED}", "/properties/p/oneOf"),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            "additionalProperties with a schema is incompatible with strict mode",
            "/properties/p/additionalProperties",
        ),
    ],
)
def test_a_tool_that_strict_mode_cannot_express_is_offered_without_it_and_reported(
    property: Any, message: str | None, path: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    schema = {"type": "object", "properties": {"p": property, "q": {"type": "integer", "default": 1}}}
    report: list[Remark] = []
    chat, [flat] = (
        openai_tools(of_schema(schema), strict=True),
        openai_tools(of_schema(schema), strict=True, api="responses", report=report),
    )
    if message is None or path is None:
        assert flat["strict"] is True
        assert report == [Remark("a.tool", "/properties/q/default", "default is dropped")]
        assert caplog.messages == []
        return
    assert flat["strict"] is False
    assert flat["parameters"] == schema
    assert chat == openai_tools(of_schema(schema))
    assert report == [Remark("a.tool", path, f"not strict: {message}")]
    assert caplog.messages == [f"Tool a.tool: not strict: {message}: {path}"] * 2


def test_keywords_that_openai_does_not_know_are_dropped_in_strict_mode() -> None:
    text = {"type": "string", "contentEncoding": "base64", "examples": ["x"], "deprecated": True, "minLength": 1}
    report: list[Remark] = []
    schema = {"type": "object", "properties": {"p": text}, "required": ["p"]}
    [made] = openai_tools(of_schema(schema), strict=True, report=report)
    assert made["function"]["parameters"]["properties"] == {"p": {"type": "string", "minLength": 1}}
    assert [remark.message.split()[0] for remark in report] == ["contentEncoding", "examples", "deprecated"]


def test_an_object_schema_always_has_properties_and_never_names_its_draft() -> None:
    [made] = openai_tools(of_schema({"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"}))
    assert made["function"]["parameters"] == {"type": "object", "properties": {}}


def test_sensitive_fields_show_neither_their_mark_nor_their_default() -> None:
    key = {"type": "string", "x-sensitive": True, "default": "hunter2", "examples": ["hunter3"]}
    [made] = openai_tools(of_schema({"type": "object", "properties": {"key": key}}))
    assert made["function"]["parameters"]["properties"] == {"key": {"type": "string"}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}, "Circular reference"),
        ({"properties": {"a": {"$ref": "#/$defs/Gone"}}}, "there is no definition 'Gone'"),
    ],
)
def test_a_tool_without_an_openai_form_is_left_out_and_reported(
    schema: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    report: list[Remark] = []
    assert names(openai_tools([of_schema({"type": "object", **schema}), count], report=report)) == ["count"]
    [remark] = report
    assert (remark.tool, remark.path) == ("a.tool", "")
    assert remark.message.startswith(f"skipped: {reason}")
    [record] = caplog.records
    assert (record.name, record.levelno) == ("dragoman.openai", logging.WARNING)
    assert record.getMessage() == f"Tool a.tool: {remark.message}"


def test_hints_are_appended_to_the_description_when_asked_for() -> None:
    descriptions = [each["function"]["description"] for each in openai_tools([resize, count], embed_annotations=True)]
    assert descriptions == ["Resizes an image.\n\n[Annotations: idempotent=true]", "Counts."]
    assert openai_tools(resize)[0]["function"]["description"] == "Resizes an image."


def test_only_tools_with_the_prefix_that_the_caller_may_call_are_there() -> None:
    tools = [of_name("shop.order"), of_name("shop.cancel"), of_name("bank.pay")]
    clerk = Caller("clerk", scopes=frozenset({"tool:shop.order", "tool:bank.*"}))
    assert names(openai_tools(tools, prefix="shop.")) == ["shop-order", "shop-cancel"]
    assert names(openai_tools(tools, caller=clerk)) == ["shop-order", "bank-pay"]
    assert names(openai_tools(tools, caller=clerk, prefix="shop.")) == ["shop-order"]
    assert openai_tools(tools, prefix="none") == []


@pytest.mark.parametrize("options", [{"prefix": ""}, {"api": "assistants"}])
def test_options_without_a_meaning_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"empty|Unknown api"):
        openai_tools([count], **options)


def test_the_result_is_not_shared_with_the_tool() -> None:
    for strict in (True, False):
        first = openai_tools(resize, strict=strict)
        before = json.dumps(first)
        first[0]["function"]["parameters"]["properties"]["size"].clear()
        assert json.dumps(openai_tools(resize, strict=strict)) == before


# Names


def test_names_without_dots_or_slashes_lead_back_to_their_tools() -> None:
    tools = [
        of_name("agent/sendMessage"),
        of_name("a.b/c-d_e"),
        of_name("long." * 20 + "a"),
        of_name("long." * 20 + "b"),
    ]
    shown = names(openai_tools(tools))
    assert shown[:2] == ["agent-sendMessage", "a-b-c-d_e"]
    assert [len(name) for name in shown[2:]] == [64, 64]
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]+", name) for name in shown)

    async def call_each() -> list[str]:
        async with dragoman.open(tools) as runtime:
            return [json.loads(await content(runtime, name, "{}"))["ran"] for name in shown]

    assert asyncio.run(call_each()) == [each.name for each in tools]


def test_tools_that_share_a_function_name_are_all_left_out_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    report: list[Remark] = []
    tools = [of_name("a.b"), of_name("a/b"), of_name("c"), of_name("größe")]
    assert names(openai_tools(tools, report=report)) == ["c"]
    assert report == [
        Remark("a.b", "", "skipped: its function name 'a-b' is also that of 'a/b'"),
        Remark("a/b", "", "skipped: its function name 'a-b' is also that of 'a.b'"),
        Remark("größe", "", "skipped: the tool name 'größe' cannot be a function name"),
    ]
    assert len(caplog.records) == 3
    assert openai_tools(tools, prefix="a/") == []
    assert openai_tools(tools, caller=Caller("one", scopes=frozenset({"tool:a.b"}))) == []


async def test_a_tool_that_is_registered_later_cannot_take_over_the_calls_of_another() -> None:
    async with dragoman.open([of_name("shop.order")]) as runtime:
        assert json.loads(await content(runtime, "shop-order", "{}")) == {"ran": "shop.order"}
        runtime.replace((), [of_name("shop-order")])
        refused = json.loads(await content(runtime, "shop-order", "{}"))
        assert (refused["code"], refused["message"]) == (
            "NOT_FOUND",
            "Several tools have the function name shop-order, so none can be called by it",
        )
        assert names(openai_tools(runtime)) == ["health"]


# The calls


def chat_call(name: Any, arguments: Any, id: Any = "call_1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def content(runtime: Any, name: Any, arguments: Any, **options: Any) -> str:
    message = await call_openai_tool(runtime, chat_call(name, arguments), **options)
    conforms(message, ChatCompletionToolMessageParam)
    assert (message["role"], message["tool_call_id"]) == ("tool", "call_1")
    assert isinstance(message["content"], str)
    return message["content"]


async def test_a_call_of_either_api_as_object_or_dict_is_answered_in_kind() -> None:
    chat = ChatCompletionMessageFunctionToolCall.model_validate(chat_call("count", '{"to": 5}'))
    streamed = ChoiceDeltaToolCall.model_validate({"index": 0, **chat_call("count", '{"to": 5}')})
    response = ResponseFunctionToolCall(
        type="function_call", call_id="call_2", id="fc_1", name="count", arguments='{"to": 5}'
    )
    async with dragoman.open([count]) as runtime:
        for each in (chat, chat.model_dump(), streamed, streamed.model_dump()):
            message = await call_openai_tool(runtime, each)
            assert message == {"role": "tool", "tool_call_id": "call_1", "content": "5"}
        for each in (response, response.model_dump()):
            message = await call_openai_tool(runtime, each)
            conforms(message, FunctionCallOutput)
            assert message == {"type": "function_call_output", "call_id": "call_2", "output": "5"}


NOT_JSON = "the arguments are not JSON"
NO_OBJECT = "the arguments are not a JSON object"
NO_NAME = "the tool call names no function"
DEEP = '{"to": ' + "[" * 700 + "]" * 700 + "}"


@pytest.mark.parametrize("dialect", ["structured", "envelope", "plain"])
@pytest.mark.parametrize(
    ("name", "arguments", "code", "expected"),
    [
        ("count", '{"to": 1', "INVALID_ARGUMENT", NOT_JSON),
        ("count", "NaN", "INVALID_ARGUMENT", NOT_JSON),
        ("count", "\ud800", "INVALID_ARGUMENT", NOT_JSON),
        ("count", "[" * 100_000, "INVALID_ARGUMENT", NOT_JSON),
        ("count", "[1]", "INVALID_ARGUMENT", NO_OBJECT),
        ("count", "null", "INVALID_ARGUMENT", NO_OBJECT),
        ("count", 7, "INVALID_ARGUMENT", NO_OBJECT),
        ("count", DEEP, "INVALID_ARGUMENT", "nested too deeply"),
        ("count", '{"to": "many"}', "INVALID_ARGUMENT", "integer"),
        ("count", '{"form": 1}', "INVALID_ARGUMENT", "form"),
        ("cuont", "{}", "NOT_FOUND", "cuont"),
        ("", "{}", "NOT_FOUND", ""),
        ("\ud800", "{}", "NOT_FOUND", ""),
        ("x" * 100_000, "{}", "NOT_FOUND", "xxx"),
        (None, "{}", "INVALID_ARGUMENT", NO_NAME),
        (7, "{}", "INVALID_ARGUMENT", NO_NAME),
        ("fail", "{}", "INTERNAL", ""),
    ],
)
async def test_every_bad_call_is_answered_with_its_error_and_recorded(
    dialect: str, name: Any, arguments: Any, code: str, expected: str
) -> None:
    async with open_server([count, fail], {"response": {"dialect": dialect}}) as server:
        text = await content(server.runtime, name, arguments)
        assert expected in text
        assert "hunter2" not in text
        [record] = server.records
        assert (record["outcome"], record["errorCode"]) == ("tool_error", code)
        assert len(record["toolName"]) <= 128


async def test_a_call_that_cannot_be_read_is_recorded_under_the_name_of_its_tool() -> None:
    async with open_server([resize, of_name("a.b"), of_name("a/b")]) as server:
        for name in ("image-resize", "a-b", "none"):
            await content(server.runtime, name, "{")
        assert [each["toolName"] for each in server.records] == ["image.resize", "a-b", "none"]


@pytest.mark.parametrize("alien", [None, 7, "call", {}, {"function": 7}, [], {"id": 7, "function": {}}])
async def test_a_value_that_is_not_a_call_is_answered_too(alien: Any) -> None:
    custom = ChatCompletionMessageCustomToolCall.model_validate(
        {"id": "call_1", "type": "custom", "custom": {"name": "count", "input": "x"}}
    )
    async with dragoman.open([count]) as runtime:
        for each in (alien, custom):
            message = await call_openai_tool(runtime, each)
            conforms(message, ChatCompletionToolMessageParam)
            assert NO_NAME in message["content"]


@pytest.mark.parametrize("arguments", ["", None, "{}", {}, '{"to": null}', {"to": None}])
async def test_missing_arguments_and_the_nulls_of_strict_mode_leave_defaults_in_place(arguments: Any) -> None:
    async with dragoman.open([count]) as runtime:
        assert await content(runtime, "count", arguments) == "3"


async def test_nulls_are_left_out_behind_references_too_and_kept_where_they_are_values() -> None:
    schema = {
        "type": "object",
        "properties": {"size": {"$ref": "#/definitions/S"}, "label": {"type": ["string", "null"]}},
        "definitions": {"S": {"type": "object", "properties": {"unit": {"type": "string"}}}},
    }
    sent = {"size": {"unit": None}, "label": None}
    async with dragoman.open([of_schema(schema)]) as runtime:
        assert json.loads(await content(runtime, "a-tool", json.dumps(sent))) == {"size": {}, "label": None}


async def test_a_call_is_made_for_its_caller_and_within_its_scopes() -> None:
    clerk = Caller("clerk", scopes=frozenset({"tool:whoami"}))
    async with open_server([whoami, count]) as server:
        assert json.loads(await content(server.runtime, "whoami", "{}", caller=clerk)) == {"caller": "clerk"}
        assert json.loads(await content(server.runtime, "count", "{}", caller=clerk))["code"] == "UNAUTHORIZED"
        assert await content(server.runtime, "count", "{}", correlation_id="mine") == "3"
        assert [each["outcome"] for each in server.records] == ["success", "tool_error", "success"]
        assert server.records[2]["correlationId"] == "mine"


async def test_limits_and_deadlines_of_the_runtime_hold() -> None:
    config = {"timeouts": {"tool_overrides": {"wait": 20}}, "tools": {"max_payload_bytes": 100}}
    async with dragoman.open([wait, count], config) as runtime:
        assert json.loads(await content(runtime, "wait", "{}"))["code"] == "TIMEOUT"
        large = json.dumps({"to": "x" * 200})
        assert json.loads(await content(runtime, "count", large))["code"] == "RESOURCE_EXHAUSTED"


async def test_a_runtime_that_has_stopped_answers_so() -> None:
    async with dragoman.open([count]) as runtime:
        pass
    assert json.loads(await content(runtime, "count", "{}"))["code"] == "RESOURCE_EXHAUSTED"


async def test_calls_run_at_the_same_time_and_end_when_they_are_cancelled() -> None:
    async with open_server([count, wait]) as server:
        waiting = asyncio.create_task(call_openai_tool(server.runtime, chat_call("wait", "{}")))
        answers = await asyncio.gather(*(content(server.runtime, "count", {"to": number}) for number in range(8)))
        assert answers == [str(number) for number in range(8)]
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await server.runtime.runner.drain(10)
        assert [each["toolName"] for each in server.records] == ["count"] * 8 + ["wait"]


async def test_a_tool_that_has_to_ask_a_person_is_refused_because_nobody_can_be_asked() -> None:
    @tool
    def pay(amount: int, sure: Annotated[bool, Ask("Pay?")]) -> dict[str, Any]:
        """Pays."""
        return {"paid": amount}

    [made] = openai_tools(pay, strict=True)
    assert made["function"]["parameters"]["required"] == ["amount"]
    async with dragoman.open([pay]) as runtime:
        assert "paid" not in await content(runtime, "pay", '{"amount": 1}')


async def test_content_blocks_become_text_and_responses_receives_images() -> None:
    blocks = [
        Text("one"),
        Image(b"abc"),
        Audio(b"abc"),
        ResourceLink("docs://a", "a"),
        EmbeddedResource(TextResource("docs://b", "two")),
        Text(""),
    ]
    others = ["[audio of type audio/wav, not available as text]", "a: docs://a", "two", ""]
    async with dragoman.open([of_name("mixed", blocks), of_name("words", [Text("one"), Text("two")])]) as runtime:
        assert await content(runtime, "mixed", "{}") == "\n".join(
            ["one", "[image of type image/png, not available as text]", *others]
        )
        response = {"type": "function_call", "call_id": "call_2", "name": "mixed", "arguments": "{}"}
        message = await call_openai_tool(runtime, response)
        conforms(message, FunctionCallOutput)
        assert message["output"] == [
            {"type": "input_text", "text": "one"},
            {"type": "input_image", "image_url": "data:image/png;base64,YWJj"},
            *({"type": "input_text", "text": text} for text in others),
        ]
        message = await call_openai_tool(runtime, {**response, "name": "words"})
        assert message["output"] == "one\ntwo"


@pytest.mark.slow
def test_the_openai_package_is_not_needed() -> None:
    program = """
import asyncio, sys
sys.modules["openai"] = None  # An import of it would fail.
import dragoman

@dragoman.tool
def add(a: int, b: int) -> int:
    return a + b

async def main():
    async with dragoman.open([add]) as runtime:
        call = {"id": "1", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
        print(await dragoman.call_openai_tool(runtime, call))

print([each["function"]["name"] for each in dragoman.openai_tools([add], strict=True)])
asyncio.run(main())
"""
    done = run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['add']", "{'role': 'tool', 'tool_call_id': '1', 'content': '3'}"]


# The package itself, with a model that is played by the test


def client_of(*answers: Any) -> tuple[Any, list[dict[str, Any]]]:
    """A client of the package whose requests are answered in turn, and the bodies of those requests."""
    bodies: list[dict[str, Any]] = []
    waiting = list(answers)

    def respond(request: Request) -> Response:
        bodies.append(json.loads(request.content))
        given = waiting.pop(0)
        if isinstance(given, str):
            return Response(200, text=given, headers={"content-type": "text/event-stream"})
        return Response(200, json=given)

    client = AsyncOpenAI(
        api_key="none", base_url="http://model.invalid/v1", http_client=AsyncClient(transport=MockTransport(respond))
    )
    return client, bodies


CALLED = [
    chat_call("image-resize", '{"name": "a", "size": {"width": 2, "unit": null}, "more": null}'),
    chat_call("none", "{", "call_2"),
]


def completion(**message: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **message}}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def streamed_completion() -> str:
    """The first of the calls, in pieces."""
    pieces: list[dict[str, Any]] = [{"index": 0, **chat_call("image-resize", "")}]
    arguments = CALLED[0]["function"]["arguments"]
    pieces += [{"index": 0, "function": {"arguments": arguments[at : at + 7]}} for at in range(0, len(arguments), 7)]
    deltas: list[Any] = [{"tool_calls": [piece]} for piece in pieces]
    chunks = [
        {**completion(), "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, **end}]}
        for delta, end in [*((each, {}) for each in deltas), ({}, {"finish_reason": "tool_calls"})]
    ]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


async def test_a_conversation_with_chat_completions_goes_to_its_end() -> None:
    client, bodies = client_of(completion(tool_calls=CALLED), completion(content="done"))
    messages: list[Any] = [{"role": "user", "content": "resize a"}]
    async with client, dragoman.open([resize]) as runtime:
        while True:
            tools = openai_tools(runtime, strict=True)
            answer = await client.chat.completions.create(model="m", messages=messages, tools=tools)
            messages.append(answer.choices[0].message)
            if not answer.choices[0].message.tool_calls:
                break
            messages += [await call_openai_tool(runtime, each) for each in answer.choices[0].message.tool_calls]
    assert bodies[0]["tools"] == tools
    done, refused = bodies[1]["messages"][-2:]
    assert (done["tool_call_id"], refused["tool_call_id"]) == ("call_1", "call_2")
    assert json.loads(done["content"]) == {"name": "a", "width": 2, "unit": "px", "more": 0}
    assert NOT_JSON in refused["content"]


async def test_a_streamed_call_is_run_once_it_is_complete() -> None:
    client, _ = client_of(streamed_completion())
    async with client, dragoman.open([resize]) as runtime:
        tools = openai_tools(runtime, strict=True)
        async with client.chat.completions.stream(model="m", messages=[], tools=tools) as stream:
            whole = await stream.get_final_completion()
        [call] = whole.choices[0].message.tool_calls
        message = await call_openai_tool(runtime, call)
    assert json.loads(message["content"])["width"] == 2


async def test_a_conversation_with_responses_goes_to_its_end() -> None:
    called = {"type": "function_call", "id": "fc_1", "call_id": "call_1", **CALLED[0]["function"]}
    response = {"id": "r", "object": "response", "created_at": 0, "model": "m", "output": [called]}
    client, bodies = client_of(response, {**response, "output": []})
    items: list[Any] = [{"role": "user", "content": "resize a"}]
    async with client, dragoman.open([resize]) as runtime:
        tools = openai_tools(runtime, strict=True, api="responses")
        answer = await client.responses.create(model="m", input=items, tools=tools)
        items += answer.output
        for item in answer.output:
            if item.type == "function_call":
                items.append(await call_openai_tool(runtime, item))
        await client.responses.create(model="m", input=items, tools=tools)
    assert bodies[0]["tools"] == tools
    assert [item.get("type") for item in bodies[1]["input"]] == [None, "function_call", "function_call_output"]
    assert json.loads(bodies[1]["input"][2]["output"])["unit"] == "px"
