"""Modules as tools."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest
from apcore import Executor, ModuleAnnotations, Registry

from apcore_mcp import to_openai_tools
from apcore_mcp.server.factory import MCPServerFactory
from dragoman import Tool
from tests.support.modules import Does, Resize, Streams, registry_of, serving, text_of

CIRCLE = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/A"}},
    "$defs": {"A": {"items": {"$ref": "#/$defs/A"}}},
}
OBJECT: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}}


def answer(inputs: Any, context: Any) -> dict[str, Any]:
    return {}


@pytest.mark.requirement("FR-SERVER-011", "UC-002", "SRS-API-10", "SRS-API-15")
async def test_a_module_is_listed_as_one_tool_with_all_that_is_known_about_it() -> None:
    refers = {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}, "$defs": {"N": {"type": "integer"}}}
    registry = registry_of(image__resize=Resize(), plain=Does(answer, input_schema=OBJECT, output_schema=refers))
    (resize, plain) = MCPServerFactory().build_tools(registry)
    assert isinstance(resize, Tool)
    assert (resize.name, resize.description) == ("image.resize", "Resize an image")
    assert resize.annotations == types.ToolAnnotations(
        read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=True
    )
    assert (plain.input_schema, plain.output_schema) == (OBJECT, OBJECT)
    async with serving(registry) as server:
        for client in (await server.client(), server.connect(modern=True)):
            first, second = await client.list_tools()
            assert first["name"] == "image.resize"
            assert first["inputSchema"] == resize.input_schema
            assert "$schema" not in first["inputSchema"]
            assert "x-sensitive" not in str(first)
            assert first["annotations"] == {
                "readOnlyHint": False,
                "destructiveHint": False,
                "idempotentHint": True,
                "openWorldHint": True,
            }
            assert second == {
                "name": "plain",
                "description": "Does something",
                "inputSchema": OBJECT,
                "outputSchema": OBJECT,
                "annotations": {**first["annotations"], "idempotentHint": False},
            }


@pytest.mark.requirement("FR-SERVER-011", "SRS-API-09")
async def test_a_schema_of_another_draft_keeps_saying_so() -> None:
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", **OBJECT}
    async with serving(registry_of(a=Does(answer, input_schema=draft))) as server:
        (listed,) = await (await server.client()).list_tools()
        assert listed["inputSchema"] == draft


@pytest.mark.requirement("FR-SERVER-011")
@pytest.mark.parametrize("count", [0, 1, 100])
async def test_there_is_exactly_one_tool_for_each_module(count: int) -> None:
    registry = registry_of(**{f"m{number}": Resize() for number in range(count)})
    async with serving(registry) as server:
        listed = await (await server.client()).list_tools()
        assert [each["name"] for each in listed] == sorted(f"m{number}" for number in range(count))


@pytest.mark.requirement("FR-SERVER-011", "NFR-REL-002")
@pytest.mark.parametrize(
    "broken",
    [
        Does(answer, input_schema=CIRCLE),
        Does(answer, input_schema={"type": "object", "properties": {"a": {"$ref": "#/$defs/gone"}}}),
        Does(answer, input_schema={"type": "object", "properties": {"a": {"type": "strong"}}}),
        Does(answer, output_schema=CIRCLE),
    ],
)
async def test_one_broken_module_among_five_is_left_out_and_named(
    broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    registry = registry_of(a=Resize(), b=Resize(), broken=broken, c=Resize(), d=Resize())
    async with serving(registry) as server:
        client = await server.client()
        assert [each["name"] for each in await client.list_tools()] == ["a", "b", "c", "d"]
        assert text_of(await client.call_tool("broken", {})) == "Module not found: broken"
        assert text_of(await client.call_tool("d", {"width": 1})) == '{"width": 1, "height": 1}'
    said = [record for record in caplog.records if record.name.startswith("apcore_mcp")]
    assert [each.levelname for each in said] == ["WARNING", "ERROR"]
    assert all("broken" in each.getMessage() for each in said)


class Forgetful(Registry):
    """Lists what it does not know."""

    def get_definition(self, module_id: str, version_hint: str | None = None) -> Any:
        return None if module_id == "gone" else super().get_definition(module_id, version_hint)


@pytest.mark.requirement("FR-SERVER-011")
def test_a_module_without_a_definition_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    registry = Forgetful()
    registry.register("gone", Resize())
    registry.register("here", Resize())
    assert [tool.name for tool in MCPServerFactory().build_tools(registry)] == ["here"]
    assert "Module gone skipped: it has no definition" in caplog.text


@pytest.mark.requirement("FR-DYNAMIC-001", "SRS-API-15")
def test_a_schema_that_cannot_be_served_is_a_value_error() -> None:
    registry = registry_of(a=Does(answer, input_schema=CIRCLE), b=Does(answer, input_schema={"$ref": "#/gone"}))
    for module_id in ("a", "b"):
        descriptor = registry.get_definition(module_id)
        assert descriptor is not None
        with pytest.raises(ValueError):  # noqa: PT011
            MCPServerFactory().build_tool(descriptor)


@pytest.mark.requirement("FR-FILTER-001", "FR-FILTER-002", "FR-FILTER-003", "FR-SERVER-008", "FR-SERVER-009")
@pytest.mark.parametrize(
    ("tags", "prefix", "expected"),
    [
        (None, None, ["api.a", "api.b", "web.a"]),
        ([], None, ["api.a", "api.b", "web.a"]),
        (["public"], None, ["api.a", "web.a"]),
        (["public", "stable"], None, ["api.a"]),
        (["nonexistent"], None, []),
        (None, "api.", ["api.a", "api.b"]),
        (None, "nonexistent.", []),
        (["public"], "api.", ["api.a"]),
        (["stable"], "web.", []),
    ],
)
async def test_what_a_filter_leaves_out_is_neither_listed_nor_called(
    tags: list[str] | None, prefix: str | None, expected: list[str]
) -> None:
    ran: list[str] = []

    def named(name: str, *tags: str) -> Does:
        return Does(lambda inputs, context: ran.append(name) or {}, tags=tags)

    registry = registry_of(
        api__a=named("api.a", "public", "stable"), api__b=named("api.b", "stable"), web__a=named("web.a", "public")
    )
    assert [each.name for each in MCPServerFactory().build_tools(registry, tags, prefix)] == expected
    offered = to_openai_tools(registry, tags=tags, prefix=prefix)
    assert [each["function"]["name"].replace("-", ".") for each in offered] == expected
    async with serving(registry, tags=tags, prefix=prefix) as server:
        client = await server.client()
        assert [each["name"] for each in await client.list_tools()] == expected
        for name in ("api.a", "api.b", "web.a"):
            text = text_of(await client.call_tool(name, {}))
            assert text == ("{}" if name in expected else f"Module not found: {name}")
    assert ran == expected


async def test_a_hidden_module_is_neither_listed_nor_called() -> None:
    hidden = Does(answer, annotations=ModuleAnnotations(discoverable=False))
    async with serving(registry_of(hidden=hidden), dynamic=True) as server:
        client = await server.client()
        assert await client.list_tools() == []
        assert text_of(await client.call_tool("hidden", {})) == "Module not found: hidden"


# Arguments


class Noting(Executor):
    """Keeps the arguments of the calls that reach it."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.seen: list[Any] = []

    async def call_async(self, module_id: str, inputs: Any = None, *rest: Any, **options: Any) -> Any:
        self.seen.append(inputs)
        return await super().call_async(module_id, inputs, *rest, **options)


@pytest.mark.requirement("SRS-API-04")
async def test_arguments_can_be_checked_before_the_executor_sees_them() -> None:
    ran: list[Any] = []
    module = Does(lambda inputs, context: ran.append(inputs) or {}, input_schema={**OBJECT, "required": ["n"]})
    for checks, seen in ((False, [{"n": 1}, {"n": "one"}, {}]), (True, [{"n": 1}])):
        executor = Noting(registry_of(a=module))
        async with serving(executor, validate_inputs=checks) as server:
            client = await server.client()
            assert text_of(await client.call_tool("a", {"n": 1})) == "{}"
            wrong = text_of(await client.call_tool("a", {"n": "one"}))
            missing = text_of(await client.call_tool("a", {}))
            assert wrong.startswith("Input validation failed:\n- n: ")
            assert missing.startswith("Input validation failed:\n- n: ")
            assert missing.endswith("(missing)")
            assert wrong.endswith("(int_type)")
            assert '"one"' not in wrong
        assert executor.seen == seen
    assert ran == [{"n": 1}] * 2


# Documentation


@pytest.mark.requirement("FR-RESOURCE-001", "FR-RESOURCE-002")
async def test_documentation_is_a_resource_and_where_there_is_none_there_is_none() -> None:
    registry = registry_of(
        image__resize=Resize(), none=Does(answer), empty=Does(answer, documentation=""), s=Streams({"a": 1})
    )
    async with serving(registry) as server:
        for client in (await server.client(), server.connect(modern=True)):
            listed = (await client.request("resources/list"))["result"]["resources"]
            assert [(each["uri"], each["name"], each["mimeType"]) for each in listed] == [
                ("docs://image.resize", "docs://image.resize", "text/plain")
            ]
            read = (await client.request("resources/read", {"uri": "docs://image.resize"}))["result"]["contents"]
            assert read == [{"uri": "docs://image.resize", "mimeType": "text/plain", "text": "Give a width."}]
            for uri in ("docs://none", "docs://empty", "docs://no.such"):
                error = (await client.request("resources/read", {"uri": uri}))["error"]
                assert error["message"] == "Resource not found"


@pytest.mark.requirement("FR-RESOURCE-002")
async def test_without_any_documentation_the_list_is_empty() -> None:
    async with serving(registry_of(none=Does(answer))) as server:
        assert (await (await server.client()).request("resources/list"))["result"]["resources"] == []


async def test_a_tool_that_was_made_without_a_router_cannot_be_called() -> None:
    (tool,) = MCPServerFactory().build_tools(registry_of(a=Resize()))
    context: Any = None
    with pytest.raises(RuntimeError, match="has no router"):
        await tool.handler({}, context)
