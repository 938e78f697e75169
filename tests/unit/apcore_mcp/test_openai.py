"""Modules as OpenAI's tools, and a model's calls of them, held against the types of the real package."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
import sys
from collections.abc import Iterator
from subprocess import run
from typing import Any

import pytest
from apcore import ACL, ACLRule, Executor, ModuleAnnotations, ModuleDescriptor, Registry
from openai.types.chat import (
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageCustomToolCall,
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionToolMessageParam,
)
from openai.types.chat.chat_completion_message_function_tool_call import Function
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall
from openai.types.responses.response_input_param import FunctionCallOutput
from openai.types.shared_params import FunctionDefinition
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, with_config

import dragoman
from apcore_mcp import attach, call_openai_tool, to_openai_tools
from apcore_mcp.adapters.schema import SchemaConverter
from apcore_mcp.converters import openai
from apcore_mcp.converters.openai import ModuleRemark, OpenAIConverter
from dragoman.schemas.schema import DRAFT_2020_12
from tests.support.modules import serving

CIRCULAR = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}


class Module:
    """Answers with what it was given."""

    def __init__(self, input_schema: Any = None, **facts: Any) -> None:
        self.input_schema = input_schema if input_schema is not None else {"type": "object"}
        self.output_schema: Any = {}
        self.description = "Answers with what it was given."
        for name, value in facts.items():
            setattr(self, name, value)

    async def execute(self, inputs: dict[str, Any], context: Any) -> dict[str, Any]:
        if "fail" in inputs:
            raise RuntimeError("hunter2")
        if "wait" in inputs:
            await asyncio.sleep(60)
        return {"got": inputs}


def registry_of(**modules: Any) -> Registry:
    registry = Registry()
    for name, module in modules.items():
        registry.register(name.replace("__", "."), module)
    return registry


class Size(BaseModel):
    width: int
    unit: str = "px"


class Picture(BaseModel):
    name: str = Field(description="what it is called")
    size: Size
    more: list[Size] = []


REFUSED = "refused by OpenAI in strict mode"


def parameters(schema: Any, report: list[ModuleRemark] | None = None, **options: Any) -> Any:
    [tool] = to_openai_tools(registry_of(a__module=Module(schema)), report=report, **options)
    return tool["function"]["parameters"]


def strict(property: Any, *, is_required: bool = False, report: list[ModuleRemark] | None = None) -> Any:
    schema = {"type": "object", "properties": {"p": property}, "required": ["p"] if is_required else []}
    made = parameters(schema, report, strict=True)
    assert {key: made[key] for key in made if key != "properties"} == {
        "type": "object",
        "required": ["p"],
        "additionalProperties": False,
    }
    return made["properties"]["p"]


@pytest.mark.requirement("FR-OPENAI-001", "UC-005")
def test_each_module_is_a_tool() -> None:
    registry = registry_of(image__resize=Module(Picture), simple=Module())
    tools = to_openai_tools(registry)
    definition = registry.get_definition("image.resize")
    assert definition is not None
    assert tools == [
        {
            "type": "function",
            "function": {
                "name": "image-resize",
                "description": "Answers with what it was given.",
                "parameters": SchemaConverter().convert_input_schema(definition),
            },
        },
        {
            "type": "function",
            "function": {
                "name": "simple",
                "description": "Answers with what it was given.",
                "parameters": {"type": "object"},
            },
        },
    ]


@pytest.mark.requirement("FR-OPENAI-001")
@pytest.mark.parametrize("count", [0, 1, 100])
def test_there_are_as_many_tools_as_modules(count: int) -> None:
    registry = registry_of(**{f"m{number}": Module() for number in range(count)})
    names = [tool["function"]["name"] for tool in to_openai_tools(registry)]
    assert sorted(names) == sorted(f"m{number}" for number in range(count))


@pytest.mark.requirement("FR-OPENAI-001", "UC-005")
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (CIRCULAR, "Circular reference: A -> A"),
        ({"$ref": "#/$defs/Gone"}, "there is no definition 'Gone'"),
    ],
)
def test_a_module_whose_schema_fails_is_left_out(schema: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    report: list[ModuleRemark] = []
    tools = to_openai_tools(registry_of(good=Module(), bad=Module(schema)), report=report)
    assert [tool["function"]["name"] for tool in tools] == ["good"]
    assert report == [ModuleRemark("bad", "", f"skipped: {reason}")]
    [record] = caplog.records
    assert (record.name.partition(".")[0], record.levelno) == ("apcore_mcp", logging.WARNING)
    assert record.getMessage() == f"Module bad cannot be a tool; skipped: {reason}"


@pytest.mark.requirement("FR-SCHEMA-004")
@pytest.mark.parametrize("schema", [{}, {"properties": {"a": {}}}, Picture, {"title": "T", "type": "object"}])
def test_parameters_are_what_mcp_has(schema: Any) -> None:
    definition = registry_of(m=Module(schema)).get_definition("m")
    assert definition is not None
    assert parameters(schema) == SchemaConverter().convert_input_schema(definition)


@pytest.mark.requirement("FR-SCHEMA-004")
def test_the_converter_raises_for_a_single_module() -> None:
    broken = ModuleDescriptor("m", None, "", None, input_schema=CIRCULAR, output_schema={})
    with pytest.raises(ValueError, match="Circular reference"):
        OpenAIConverter().convert_descriptor(broken)


@pytest.mark.requirement("FR-OPENAI-002")
def test_names_are_made_of_ids_without_their_dots() -> None:
    tools = to_openai_tools(registry_of(comfyui__workflow__execute=Module(), my_module__resize=Module()))
    assert [tool["function"]["name"] for tool in tools] == ["comfyui-workflow-execute", "my_module-resize"]


class Shelf:
    """The part of a registry that is needed, with ids that apcore's own would refuse."""

    def __init__(self, *ids: str) -> None:
        self._ids = ids

    def list(self, tags: Any = None, prefix: str | None = None) -> list[str]:
        return [each for each in self._ids if each.startswith(prefix or "")]

    def get_definition(self, module_id: str) -> ModuleDescriptor:
        return ModuleDescriptor(module_id, None, "", None, input_schema={}, output_schema={})

    def on(self, event: str, callback: Any) -> None: ...


def test_long_names_are_cut_and_collisions_reported(caplog: pytest.LogCaptureFixture) -> None:
    report: list[ModuleRemark] = []
    shelf: Any = Shelf("a.b", "a/b", "x-y", "long." * 30 + "a", "long." * 30 + "b")
    names = [tool["function"]["name"] for tool in to_openai_tools(shelf, report=report)]
    assert names[0] == "a-b"
    assert len(set(names)) == 3
    assert [len(name) for name in names[1:]] == [64, 64]
    assert report == [
        ModuleRemark("a/b", "", "skipped: its function name 'a-b' is that of 'a.b' already"),
        ModuleRemark("x-y", "", "skipped: the module id 'x-y' has a hyphen, and those stand for its dots"),
    ]
    assert len(caplog.records) == 2
    assert to_openai_tools(shelf, prefix="a/") == []


@pytest.mark.requirement("FR-OPENAI-003")
def test_without_strict_mode_nothing_says_or_looks_so() -> None:
    [tool] = to_openai_tools(registry_of(m=Module(Picture)))
    assert "strict" not in tool["function"]
    assert tool["function"]["parameters"]["properties"]["more"]["default"] == []


@pytest.mark.requirement("FR-OPENAI-003", "UC-008")
def test_in_strict_mode_a_whole_model_is_closed() -> None:
    [tool] = to_openai_tools(registry_of(m=Module(Picture)), strict=True)
    size = {
        "title": "Size",
        "type": "object",
        "properties": {
            "width": {"title": "Width", "type": "integer"},
            "unit": {"title": "Unit", "type": ["string", "null"]},
        },
        "required": ["width", "unit"],
        "additionalProperties": False,
    }
    assert tool["function"]["strict"] is True
    assert tool["function"]["parameters"] == {
        "title": "Picture",
        "type": "object",
        "properties": {
            "name": {"title": "Name", "type": "string", "description": "what it is called"},
            "size": size,
            "more": {"title": "More", "type": ["array", "null"], "items": size},
        },
        "required": ["name", "size", "more"],
        "additionalProperties": False,
    }


@pytest.mark.requirement("FR-OPENAI-003")
@pytest.mark.parametrize(
    ("property", "expected"),
    [
        ({"type": "string"}, {"type": ["string", "null"]}),
        ({"type": ["string", "integer"]}, {"type": ["string", "integer", "null"]}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": "null"}, {"type": "null"}),
        ({"type": "string", "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"enum": ["a", None]}, {"enum": ["a", None]}),
        ({"type": "string", "enum": ["a", None]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"const": "a"}, {"enum": ["a", None]}),
        ({"type": "string", "const": "a"}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"const": None}, {"const": None}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"anyOf": [{"type": "string"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"oneOf": [{"type": "string"}]}, {"oneOf": [{"type": "string"}, {"type": "null"}]}),
        ({"allOf": [{"type": "string"}]}, {"anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}]}),
        (
            {"type": "string", "allOf": [{"enum": ["a"]}]},
            {"anyOf": [{"type": "string", "allOf": [{"enum": ["a"]}]}, {"type": "null"}]},
        ),
        ({"description": "anything"}, {"description": "anything"}),
        (True, True),
        (False, {"anyOf": [False, {"type": "null"}]}),
    ],
)
def test_what_was_optional_may_be_null(property: Any, expected: Any) -> None:
    assert strict(property) == expected
    assert strict({"type": "array", "items": property}, is_required=True)["items"] == property


@pytest.mark.requirement("FR-OPENAI-003")
@pytest.mark.parametrize("keyword", ["anyOf", "oneOf", "allOf"])
def test_strict_mode_reaches_every_branch(keyword: str) -> None:
    branch = {"type": "object", "properties": {"q": {"type": "integer", "default": 1}}}
    closed = {
        "type": "object",
        "properties": {"q": {"type": ["integer", "null"]}},
        "required": ["q"],
        "additionalProperties": False,
    }
    assert strict({keyword: [branch, branch]}, is_required=True) == {keyword: [closed, closed]}
    assert strict({"type": "array", "items": {keyword: [branch]}}, is_required=True)["items"] == {keyword: [closed]}


@pytest.mark.requirement("FR-OPENAI-003")
def test_what_strict_mode_does_not_know_is_dropped_and_reported() -> None:
    report: list[ModuleRemark] = []
    schema = {
        "type": "object",
        "x-order": 1,
        "properties": {
            "default": {"type": "string", "default": "d", "format": "uri"},
            "x-real": {"type": "array", "items": {"type": "integer", "x-unit": "px"}, "uniqueItems": True},
            "when/where": {"type": "string", "format": "date-time", "pattern": "^2", "minLength": 1},
        },
        "required": ["default", "x-real", "when/where", "elsewhere"],
        "if": {"required": ["default"]},
    }
    assert parameters(schema, report, strict=True) == {
        "type": "object",
        "properties": {
            "default": {"type": "string"},
            "x-real": {"type": "array", "items": {"type": "integer"}},
            "when/where": {"type": "string", "format": "date-time", "pattern": "^2", "minLength": 1},
        },
        "required": ["default", "x-real", "when/where"],
        "additionalProperties": False,
    }
    assert report == [
        ModuleRemark("a.module", "/x-order", "x-order is dropped"),
        ModuleRemark("a.module", "/properties/default/default", "default is dropped"),
        ModuleRemark("a.module", "/properties/default/format", "format uri is dropped"),
        ModuleRemark("a.module", "/properties/x-real/items/x-unit", "x-unit is dropped"),
        ModuleRemark("a.module", "/properties/x-real/uniqueItems", "uniqueItems is dropped"),
        ModuleRemark("a.module", "/if", "if is dropped"),
    ]


@pytest.mark.requirement("FR-OPENAI-003", "UC-008")
@pytest.mark.parametrize(
    ("property", "what", "why", "path"),
    [
        (
            {"type": "object", "additionalProperties": True},
            "additionalProperties: true",
            "incompatible with strict mode",
            "/properties/p/additionalProperties",
        ),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            "additionalProperties with a schema",
            "incompatible with strict mode",
            "/properties/p/additionalProperties",
        ),
        ({"oneOf": [{"type": "null"}]}, "oneOf", REFUSED, "/properties/p/oneOf"),
        ({"allOf": [{"type": "null"}]}, "allOf", REFUSED, "/properties/p/allOf"),
        ({"type": "array", "prefixItems": [{"type": "null"}]}, "prefixItems", REFUSED, "/properties/p/prefixItems"),
        ({"type": "array", "items": [{"type": "null"}]}, "a list of items", REFUSED, "/properties/p/items"),
        ({"type": ["array", "null"]}, "an array without items", REFUSED, "/properties/p"),
        ({"type": "array", "items": True}, "a schema without a type", REFUSED, "/properties/p/items"),
        ({"type": "array", "items": {}}, "a schema without a type", REFUSED, "/properties/p/items"),
        ({"anyOf": [{"description": "anything"}]}, "a schema without a type", REFUSED, "/properties/p/anyOf/0"),
        ({"title": "Anything"}, "a schema without a type", REFUSED, "/properties/p"),
        (True, "a schema without a type", REFUSED, "/properties/p"),
        (False, "a schema without a type", REFUSED, "/properties/p"),
    ],
)
def test_a_schema_that_is_not_for_strict_mode_is_there_with_a_warning(
    property: Any, what: str, why: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    report: list[ModuleRemark] = []
    made = strict(property, is_required=True, report=report)
    closed = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    assert made == (closed if what.startswith("additionalProperties") else property)
    assert report == [ModuleRemark("a.module", path, f"{what} is {why}")]
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == f"Schema for module 'a.module' uses {what}, which is {why}: {path}"


class Listing:
    """A registry with just what making tools needs."""

    def __init__(self, registry: Registry) -> None:
        self.list = registry.list
        self.get_definition = registry.get_definition


@pytest.mark.requirement("FR-EXEC-006", "SRS-API-08")
def test_a_registry_without_events_has_the_same_tools() -> None:
    registry = registry_of(a=Module(), b=Module())
    listing: Any = Listing(registry)
    assert to_openai_tools(listing) == to_openai_tools(registry)


@pytest.mark.requirement("FR-SCHEMA-001", "FR-SCHEMA-003", "FR-SCHEMA-004")
@pytest.mark.parametrize("root", [{"type": "string"}, {"type": "array", "items": {}}, {"type": ["object", "null"]}])
async def test_parameters_are_an_object_whatever_the_root_of_a_schema_is_and_the_same_as_for_mcp(
    root: dict[str, Any],
) -> None:
    registry = registry_of(a=Module(root))
    (made,) = to_openai_tools(registry)
    async with serving(registry) as server:
        (listed,) = await (await server.client()).list_tools()
    assert made["function"]["parameters"]["type"] == "object"
    assert {**made["function"]["parameters"], "$schema": DRAFT_2020_12} == {
        "$schema": DRAFT_2020_12,
        **listed["inputSchema"],
    }
    (strict,) = to_openai_tools(registry, strict=True)
    assert strict["function"]["parameters"]["type"] == "object"


@pytest.mark.requirement("FR-OPENAI-003", "UC-008")
@pytest.mark.parametrize(
    ("keyword", "value", "what"),
    [
        ("anyOf", [{"type": "object", "properties": {}}], "anyOf at the top"),
        ("enum", [{}], "enum at the top"),
    ],
)
def test_what_openai_refuses_only_at_the_top_is_warned_of_there_and_nowhere_else(
    keyword: str, value: Any, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    report: list[ModuleRemark] = []
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False, keyword: value}
    made = parameters(schema, report, strict=True)
    assert made[keyword] == value or keyword == "anyOf"
    assert report == [ModuleRemark("a.module", f"/{keyword}", f"{what} is {REFUSED}")]
    assert caplog.messages == [f"Schema for module 'a.module' uses {what}, which is {REFUSED}: /{keyword}"]
    strict(schema, is_required=True, report=report)
    assert len(report) == 1


@pytest.mark.requirement("FR-OPENAI-003")
@pytest.mark.parametrize(
    ("pattern", "is_kept"),
    [("^a+$", True), (r"\(?=x", True), ("a(?=b)", False), ("(?<!a)b", False), ("(?:a|b)", True), (5, True)],
)
def test_a_pattern_that_looks_around_is_dropped(pattern: Any, is_kept: bool) -> None:
    report: list[ModuleRemark] = []
    made = strict({"type": "string", "pattern": pattern}, is_required=True, report=report)
    assert made == ({"type": "string", "pattern": pattern} if is_kept else {"type": "string"})
    dropped = ModuleRemark("a.module", "/properties/p/pattern", "pattern that looks around is dropped")
    assert report == ([] if is_kept else [dropped])


def test_an_object_is_known_by_what_it_says_about_its_keys() -> None:
    closed = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    for written in ({"additionalProperties": False}, {"properties": {}}):
        assert strict(written, is_required=True) == closed
        assert strict(written) == {**closed, "type": ["object", "null"]}


def test_a_schema_that_is_closed_already_needs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    closed = {"type": "object", "properties": {}, "additionalProperties": False, "required": []}
    assert strict(closed, is_required=True) == closed
    assert caplog.records == []


@pytest.mark.requirement("FR-OPENAI-004", "UC-005")
def test_annotations_are_embedded_when_asked_for() -> None:
    registry = registry_of(
        reads=Module(annotations=ModuleAnnotations(readonly=True, idempotent=True)),
        usual=Module(annotations=ModuleAnnotations()),
        without=Module(),
    )
    plain = "Answers with what it was given."
    assert [tool["function"]["description"] for tool in to_openai_tools(registry)] == [plain] * 3
    embedded = [tool["function"]["description"] for tool in to_openai_tools(registry, embed_annotations=True)]
    assert embedded == [plain + "\n\n[Annotations: readonly=true, idempotent=true]", plain, plain]


@pytest.mark.requirement("FR-OPENAI-006", "FR-OPENAI-007", "UC-005")
@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["comfyui-a", "comfyui-b", "other-a"]),
        ({"tags": None, "prefix": None}, ["comfyui-a", "comfyui-b", "other-a"]),
        ({"tags": ["image"]}, ["comfyui-a", "other-a"]),
        ({"tags": ["image", "slow"]}, ["other-a"]),
        ({"tags": ["nonexistent"]}, []),
        ({"prefix": "comfyui."}, ["comfyui-a", "comfyui-b"]),
        ({"prefix": "nonexistent."}, []),
        ({"tags": ["image"], "prefix": "comfyui."}, ["comfyui-a"]),
    ],
)
def test_filters_leave_what_they_match(filters: dict[str, Any], names: list[str]) -> None:
    registry = registry_of(
        comfyui__a=Module(tags=["image"]), comfyui__b=Module(), other__a=Module(tags=["image", "slow"])
    )
    assert [tool["function"]["name"] for tool in to_openai_tools(registry, **filters)] == names


@pytest.mark.requirement("FR-OPENAI-006", "FR-OPENAI-007", "SRS-API-07")
@pytest.mark.parametrize("filters", [{"tags": [""]}, {"tags": ["a", ""]}, {"prefix": ""}, {"api": "assistants"}])
def test_what_cannot_be_asked_for_is_refused(filters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"empty|Unknown api"):
        to_openai_tools(Registry(), **filters)


@pytest.mark.requirement("FR-EXEC-006")
def test_an_executor_stands_for_its_registry() -> None:
    registry = registry_of(a=Module(Picture), b=Module())
    assert to_openai_tools(Executor(registry)) == to_openai_tools(registry) != []


@pytest.mark.requirement("FR-EXEC-006", "SRS-API-07", "UC-005")
@pytest.mark.parametrize("source", [None, "registry", {}, object()])
async def test_anything_else_is_a_type_error(source: Any) -> None:
    expected = f"^Expected Registry or Executor instance, got {type(source).__name__}$"
    with pytest.raises(TypeError, match=expected):
        to_openai_tools(source)
    with pytest.raises(TypeError, match=expected):
        await call_openai_tool(source, {})


@pytest.mark.requirement("SRS-API-07")
def test_the_signature_is_the_specification_s_and_the_function_pure() -> None:
    signature = inspect.signature(to_openai_tools).parameters
    first, *options = signature.values()
    assert first.name == "registry_or_executor"
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in options)
    defaults = {"embed_annotations": False, "strict": False, "tags": None, "prefix": None}
    assert {each.name: each.default for each in options}.items() >= defaults.items()
    schema = {"type": "object", "properties": {"p": {"type": "object", "default": {"a": [1]}}}}
    registry = registry_of(m=Module(schema))
    first_time = to_openai_tools(registry, strict=True, embed_annotations=True)
    first_time[0]["function"]["parameters"]["properties"].clear()
    assert to_openai_tools(registry, strict=True)[0]["function"]["parameters"]["properties"].keys() == {"p"}
    assert schema == {"type": "object", "properties": {"p": {"type": "object", "default": {"a": [1]}}}}


def plain_parts(value: Any) -> Iterator[type]:
    yield type(value)
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in children:
        yield from plain_parts(each)


@pytest.mark.slow
@pytest.mark.requirement("FR-OPENAI-005", "C-06", "D-03")
def test_the_openai_package_is_not_needed() -> None:
    tools = to_openai_tools(registry_of(m=Module(Picture)), strict=True)
    assert set(plain_parts(tools)) <= {dict, list, str, int, float, bool, type(None)}
    program = """
import asyncio, sys
sys.modules["openai"] = None  # To import it would fail.
from apcore import Registry
import dragoman
from apcore_mcp import attach, call_openai_tool, to_openai_tools
registry = Registry()
print(to_openai_tools(registry, strict=True, embed_annotations=True))
print(asyncio.run(call_openai_tool(registry, {"id": "1", "function": {"name": "none", "arguments": "{}"}})))
"""
    done = run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[]",
        "{'role': 'tool', 'tool_call_id': '1', 'content': 'Module not found: none'}",
    ]


def conforms(value: Any, shape: Any) -> None:
    """Fail unless the value is one of a typed dict of the package, and has no key that it does not have."""
    TypeAdapter(with_config(ConfigDict(extra="forbid"))(shape)).validate_python(value, strict=True)


@pytest.mark.requirement("FR-OPENAI-005", "UC-005")
@pytest.mark.parametrize("strict", [True, False])
def test_tools_are_what_the_package_takes(strict: bool) -> None:
    registry = registry_of(m=Module(Picture), n=Module())
    for tool in to_openai_tools(registry, strict=strict, embed_annotations=True):
        conforms(tool, ChatCompletionFunctionToolParam)
        conforms(tool["function"], FunctionDefinition)
    flat = to_openai_tools(registry, strict=strict, api="responses")
    for tool, nested in zip(flat, to_openai_tools(registry, strict=strict), strict=True):
        conforms(tool, FunctionToolParam)
        assert tool == {"type": "function", "strict": strict, **nested["function"]}


def chat_call(name: str, arguments: Any, id: str = "call_1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def content(source: Any, name: str, arguments: Any) -> str:
    message = await call_openai_tool(source, chat_call(name, arguments))
    conforms(message, ChatCompletionToolMessageParam)
    assert message.keys() == {"role", "tool_call_id", "content"}
    assert (message["role"], message["tool_call_id"]) == ("tool", "call_1")
    return message["content"]


async def test_a_call_of_either_api_as_object_or_dict_is_answered_in_kind() -> None:
    registry = registry_of(image__resize=Module())
    chat = ChatCompletionMessageFunctionToolCall(
        id="call_1", type="function", function=Function(name="image-resize", arguments='{"a": 1}')
    )
    response = ResponseFunctionToolCall(
        type="function_call", call_id="call_2", id="fc_1", name="image-resize", arguments='{"a": 1}'
    )
    for each in (chat, chat.model_dump()):
        message = await call_openai_tool(registry, each)
        assert message == {"role": "tool", "tool_call_id": "call_1", "content": '{"got": {"a": 1}}'}
    for each in (response, response.model_dump()):
        message = await call_openai_tool(registry, each)
        conforms(message, FunctionCallOutput)
        assert message == {"type": "function_call_output", "call_id": "call_2", "output": '{"got": {"a": 1}}'}


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("m", "", '{"got": {}}'),
        ("m", None, '{"got": {}}'),
        ("m", {"a": 1}, '{"got": {"a": 1}}'),
        ("m", '{"a": 1', "Invalid input: the arguments are not JSON"),
        ("m", "NaN", "Invalid input: the arguments are not JSON"),
        ("m", "\ud800", "Invalid input: the arguments are not JSON"),
        ("m", "[" * 100_000, "Invalid input: the arguments are not JSON"),
        ("m", "[1]", "Invalid input: the arguments are not a JSON object"),
        ("m", "null", "Invalid input: the arguments are not a JSON object"),
        ("m", 7, "Invalid input: the arguments are not a JSON object"),
        ("none", "{}", "Module not found: none"),
        ("", "{}", "Module not found: "),
        ("m", '{"fail": 1}', "Internal error occurred"),
        (None, "{}", "Invalid input: the tool call names no function"),
        (7, "{}", "Invalid input: the tool call names no function"),
    ],
)
async def test_what_is_wrong_with_a_call_is_what_the_model_reads(name: Any, arguments: Any, expected: str) -> None:
    assert await content(registry_of(m=Module()), name, arguments) == expected


@pytest.mark.parametrize("alien", [None, 7, "call", {}, {"function": 7}, [], {"id": 7, "function": {}}])
async def test_what_is_no_call_is_answered_as_well(alien: Any) -> None:
    message = await call_openai_tool(Registry(), alien)
    conforms(message, ChatCompletionToolMessageParam)
    assert message["content"] == "Invalid input: the tool call names no function"
    custom = ChatCompletionMessageCustomToolCall.model_validate(
        {"id": "call_1", "type": "custom", "custom": {"name": "m", "input": "x"}}
    )
    assert await call_openai_tool(Registry(), custom) == {**message, "tool_call_id": "call_1"}


@pytest.mark.parametrize("depth", [10, 450, 700])
async def test_deeply_nested_arguments_are_answered_too(depth: int) -> None:
    arguments = f'{{"a": {"[" * depth}{"]" * depth}}}'
    assert await content(registry_of(m=Module()), "m", arguments)


async def test_arguments_that_do_not_fit_are_explained() -> None:
    assert await content(registry_of(m=Module(Picture)), "m", '{"size": {}}') == (
        "Input validation failed:\n- name: Field required (missing)\n- size.width: Field required (missing)"
    )
    assert await content(registry_of(m=Module(Picture)), "m", '{"name": 1, "size": {"width": 1}}') == (
        "Input validation failed:\n- name: Input should be a valid string (string_type)"
    )


async def test_nulls_of_strict_mode_are_taken_for_what_is_left_out() -> None:
    class Options(BaseModel):
        size: Size
        sizes: list[Size] = []
        limit: int = 3
        label: str | None = "l"
        either: Size | int = 1

    sent = {
        "size": {"width": 1, "unit": None},
        "sizes": [{"width": 2, "unit": None}, {"width": 3, "unit": "cm"}],
        "limit": None,
        "label": None,
        "either": {"width": 1, "unit": None},
    }
    assert json.loads(await content(registry_of(m=Module(Options)), "m", json.dumps(sent))) == {
        "got": {
            "size": {"width": 1},
            "sizes": [{"width": 2}, {"width": 3, "unit": "cm"}],
            "label": None,
            "either": {"width": 1},
        }
    }
    without_size = await content(registry_of(m=Module(Options)), "m", '{"size": null}')
    assert without_size == "Input validation failed:\n- size: Input should be a valid object (dict_type)"


async def test_a_tool_with_a_name_that_was_cut_can_be_called() -> None:
    long = "_".join(["long"] * 20)
    registry = registry_of(**{f"{long}__{end}": Module(description=end) for end in "ab"})
    for tool in to_openai_tools(registry):
        assert re.fullmatch(r"[a-z0-9_-]{64}", tool["function"]["name"])
        assert await content(registry, tool["function"]["name"], '{"x": 1}') == '{"got": {"x": 1}}'


async def test_the_executor_s_access_rules_hold() -> None:
    rules = ACL([ACLRule(callers=["*"], targets=["m"], effect="deny")], default_effect="allow")
    executor = Executor(registry_of(m=Module(), n=Module()), acl=rules)
    assert await content(executor, "m", "{}") == "Access denied"
    assert await content(executor, "n", "{}") == '{"got": {}}'


async def test_a_module_that_needs_approval_is_refused_where_nobody_can_be_asked() -> None:
    registry = registry_of(m=Module(annotations=ModuleAnnotations(requires_approval=True)))
    assert await content(registry, "m", "{}") == "Module error: APPROVAL_DENIED"


async def test_modules_beside_the_tools_of_a_runtime_are_openai_tools_of_the_runtime() -> None:
    async with dragoman.open() as runtime:
        attach(runtime, registry_of(image__resize=Module(Size)))
        [made] = dragoman.openai_tools(runtime, strict=True, prefix="image.")
        assert made == to_openai_tools(registry_of(image__resize=Module(Size)), strict=True)[0]
        message = await dragoman.call_openai_tool(runtime, chat_call("image-resize", '{"width": 1, "unit": null}'))
        assert json.loads(message["content"]) == {"got": {"width": 1}}


async def test_modules_come_and_go() -> None:
    registry = registry_of(m=Module())
    assert await content(registry, "later", "{}") == "Module not found: later"
    registry.register("later", Module())
    assert await content(registry, "later", "{}") == '{"got": {}}'
    registry.unregister("later")
    assert await content(registry, "later", "{}") == "Module not found: later"


async def test_calls_run_at_the_same_time_and_can_be_cancelled() -> None:
    registry = registry_of(m=Module())
    waiting = asyncio.create_task(call_openai_tool(registry, chat_call("m", '{"wait": 1}')))
    answers = await asyncio.gather(*(content(registry, "m", {"n": number}) for number in range(50)))
    assert answers == [f'{{"got": {{"n": {number}}}}}' for number in range(50)]
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def runtimes() -> list[Any]:
    return [kept.value for kept in openai._runtimes._kept.values()]


@pytest.mark.slow
async def test_one_registry_has_one_runtime_and_many_do_not_keep_theirs() -> None:
    registries = [registry_of(m=Module()) for _ in range(40)]
    for _ in range(3):
        await content(registries[0], "m", "{}")
    [first] = runtimes()
    assert await asyncio.gather(*(content(each, "m", "{}") for each in registries)) == ['{"got": {}}'] * 40
    assert await content(registry_of(m=Module()), "m", "{}") == '{"got": {}}'
    assert len(runtimes()) == openai._MOST_RUNTIMES
    assert not first.runtime.is_running
    assert await content(registries[0], "m", "{}") == '{"got": {}}'


def test_runtimes_end_with_their_event_loop() -> None:
    registry = registry_of(m=Module())

    async def call() -> Any:
        await content(registry, "m", "{}")
        [mine] = runtimes()
        return mine

    first, second = asyncio.run(call()), asyncio.run(call())
    assert first.runtime is not second.runtime
    assert not first.runtime.is_running
    assert runtimes() == []
    registry.register("later", Module())
    assert first.listener.tools.keys() == {"m"}


def test_an_event_loop_that_was_just_closed_leaves_nothing_behind() -> None:
    registry = registry_of(m=Module())
    loop = asyncio.new_event_loop()
    loop.run_until_complete(content(registry, "m", "{}"))
    [left] = runtimes()
    loop.close()
    assert asyncio.run(content(registry, "m", "{}")) == '{"got": {}}'
    assert runtimes() == []
    registry.register("later", Module())
    assert left.listener.tools.keys() == {"m"}
