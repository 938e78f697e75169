"""Resources, prompts and completions: the official SDK's client over every transport, in both eras."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import msgspec
import pytest
from mcp import MCPError
from mcp.client.subscriptions import PromptsListChanged, ResourcesListChanged, ResourceUpdated

from tests.support.sdk_client import Way, connected, every_way, spawned
from tests.support.served import offers_under_test

pytestmark = pytest.mark.slow

OFFERS = str(offers_under_test.__file__)


@every_way
async def test_a_client_learns_what_is_offered(way: Way) -> None:
    async with connected(way, offers_under_test) as (client, _):
        capabilities = client.server_capabilities
        assert capabilities.resources == types.ResourcesCapability(subscribe=True, list_changed=True)
        assert capabilities.prompts == types.PromptsCapability(list_changed=True)
        assert capabilities.completions == types.CompletionsCapability()
        assert capabilities.logging == (types.LoggingCapability() if not way.is_modern else None)


@every_way
async def test_resources_are_listed_and_read(way: Way) -> None:
    async with connected(way, offers_under_test) as server:
        client = server.client
        listed = (await client.list_resources()).resources
        assert [(each.uri, each.name, each.title, each.mime_type) for each in listed] == [
            ("test://static-binary", "static_binary", None, "image/png"),
            ("test://static-text", "static_text", None, None),
            ("test://watched-resource", "watched", "Watched", None),
        ]
        (template,) = (await client.list_resource_templates()).resource_templates
        assert (template.uri_template, template.description) == ("test://template/{id}/data", "Data by id.")
        text, blob, data = [
            (await client.read_resource(uri)).contents
            for uri in ("test://static-text", "test://static-binary", "test://template/123/data")
        ]
        assert text == [
            types.TextResourceContents(
                uri="test://static-text",
                mime_type="text/plain",
                text="This is the content of the static text resource.",
            )
        ]
        assert isinstance(blob[0], types.BlobResourceContents)
        assert (blob[0].mime_type, blob[0].blob) == (
            "image/png",
            msgspec.json.decode(msgspec.json.encode(offers_under_test.PNG)),
        )
        assert isinstance(data[0], types.TextResourceContents)
        assert msgspec.json.decode(data[0].text) == {
            "id": "123",
            "templateTest": True,
            "data": "Data for ID: 123",
        }
        await server.recorded(
            ("resources/read test://static-text", "success"),
            ("resources/read test://static-binary", "success"),
            ("resources/read test://template/{id}/data", "success"),
        )


UNREADABLE = {
    "test://nonexistent": ((-32002, -32602), "Resource not found"),
    "test://template/404/data": ((-32002, -32602), "There is no such data"),
    "test://template/500/data": ((-32603, -32603), "Internal error"),
    "test://template/x/data": ((-32602, -32602), 'Invalid params: id: the value is not of type "integer"'),
}


@every_way
async def test_what_cannot_be_read_is_an_error(way: Way) -> None:
    async with connected(way, offers_under_test) as (client, _):
        for uri, (codes, message) in UNREADABLE.items():
            with pytest.raises(MCPError) as refused:
                await client.read_resource(uri)
            assert (refused.value.code, refused.value.message) == (codes[way.is_modern], message), uri
            if codes[0] == -32002:
                assert refused.value.data["uri"] == uri
            assert "secret" not in str(refused.value.data)


@every_way
async def test_prompts_are_listed_and_got(way: Way) -> None:
    async with connected(way, offers_under_test) as (client, _):
        prompts = {each.name: each for each in (await client.list_prompts()).prompts}
        assert prompts["test_prompt_with_arguments"].arguments == [
            types.PromptArgument(name="arg1", required=True),
            types.PromptArgument(name="arg2", required=True),
        ]
        with_arguments = await client.get_prompt("test_prompt_with_arguments", {"arg1": "hello", "arg2": "world"})
        embedded = await client.get_prompt("test_prompt_with_embedded_resource", {"resourceUri": "test://example"})
        image = await client.get_prompt("test_prompt_with_image")
    assert with_arguments.description == "A prompt with two arguments."
    assert with_arguments.messages == [
        types.PromptMessage(
            role="user", content=types.TextContent(text="Prompt with arguments: arg1='hello', arg2='world'")
        )
    ]
    assert isinstance(embedded.messages[0].content, types.EmbeddedResource)
    assert embedded.messages[0].content.resource.uri == "test://example"
    assert isinstance(image.messages[0].content, types.ImageContent)
    assert image.messages[1].content == types.TextContent(text="Please analyze the image above.")


@every_way
async def test_a_prompt_that_cannot_be_got_is_an_error(way: Way) -> None:
    async with connected(way, offers_under_test) as (client, _):
        for name, said in (
            ("nothing", "unknown prompt: nothing"),
            ("test_prompt_with_arguments", "arg2 is required"),
        ):
            with pytest.raises(MCPError) as refused:
                await client.get_prompt(name, {"arg1": "a"})
            assert refused.value.code == -32602
            assert said in refused.value.message


@every_way
async def test_arguments_are_completed(way: Way) -> None:
    async with connected(way, offers_under_test) as (client, _):
        prompt = types.PromptReference(name="test_prompt_with_arguments")
        template = types.ResourceTemplateReference(uri="test://template/{id}/data")
        cities = await client.complete(prompt, {"name": "arg1", "value": "par"})
        numbers = await client.complete(template, {"name": "id", "value": "1"}, context_arguments={"other": "x"})
    assert cities.completion == types.Completion(values=["paris", "park", "party"], total=3, has_more=False)
    assert numbers.completion.values == [str(each) for each in range(10, 20)]


@pytest.mark.filterwarnings("ignore:resources/(un)?subscribe is removed")
async def test_a_handshake_client_is_told_of_what_it_subscribed_to_and_of_every_list() -> None:
    heard: list[str] = []
    all_heard = asyncio.Event()

    async def on_message(message: Any) -> None:
        uri = getattr(getattr(message, "params", None), "uri", None)
        heard.append(uri or message.method)
        if len(heard) == 3:
            all_heard.set()

    async with spawned("legacy", (OFFERS,), message_handler=on_message) as (client, _):
        await client.session.subscribe_resource("test://static-text")
        await client.session.subscribe_resource("test://watched-resource")
        await client.session.unsubscribe_resource("test://static-text")
        await client.call_tool("change", {})
        await all_heard.wait()
        assert heard == [
            "test://watched-resource",
            "notifications/resources/list_changed",
            "notifications/prompts/list_changed",
        ]
        assert "test://static-binary" in [each.uri for each in (await client.list_resources()).resources]


async def test_a_modern_client_is_told_of_what_it_listens_for() -> None:
    async with (
        spawned("auto", (OFFERS,)) as (client, _),
        client.listen(
            resource_subscriptions=["test://watched-resource"], resources_list_changed=True, prompts_list_changed=True
        ) as changes,
    ):
        await client.call_tool("change", {})
        assert [await anext(changes) for _ in range(3)] == [
            ResourceUpdated("test://watched-resource"),
            ResourcesListChanged(),
            PromptsListChanged(),
        ]
        assert [each.name for each in (await client.list_prompts()).prompts] == ["test_simple_prompt"]
